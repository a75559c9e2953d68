#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

/// Starts a thread that runs `body`. If the system refuses more threads, throws UserError that says
/// what the thread is for and which limits to change.
template <class Body>
std::jthread start_thread(const char* what, Body&& body) {
  try {
    return std::jthread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    fail(
        "cannot start {}: {}; give fewer --threads, or raise the limit of processes and threads "
        "(ulimit -u, a container's pids.max) or of memory (ulimit -v)",
        what, error.code().message());
  }
}

}  // namespace nanovllm
