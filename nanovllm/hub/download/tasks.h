#pragma once

#include <atomic>
#include <deque>
#include <functional>

namespace nanovllm::hub {

/// Runs the tasks on up to eight threads, and `tick` ten times a second on this one. The first
/// exception of a task or of `tick` sets `stop`, and is thrown when all threads have ended.
void run_tasks(std::deque<std::function<void()>> tasks, std::atomic<bool>& stop,
               const std::function<void()>& tick);

}  // namespace nanovllm::hub
