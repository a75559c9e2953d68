#pragma once

#include <cstdint>
#include <functional>

namespace nanovllm::cpu {

/// Threads that parallel_for() uses when called from this thread, itself included; at least 1. Its
/// helpers live until the number changes or the thread ends.
void set_num_threads(int num_threads);
int num_threads();

using TaskFunction = std::function<void(int64_t task, int thread)>;

/// function(task, thread) for each task in [0, num_tasks), thread in [0, num_threads()). Tasks are
/// taken in ascending order by the next free thread, and the caller is one of them: a helper that
/// sleeps, or that other programs keep from running, is not waited for. That is why this is not
/// OpenMP, whose barriers wait for every thread: beside other busy programs a GEMM of 4 us took 12
/// to 28 ms. After an exception no further task starts, and the first one is thrown again here.
/// Must not be nested.
void parallel_for(int64_t num_tasks, const TaskFunction& function);
/// The same on `num_threads` threads whose helpers end with the call. It throws UserError where
/// they cannot all be started.
void parallel_for_once(int num_threads, int64_t num_tasks, const TaskFunction& function);

}  // namespace nanovllm::cpu
