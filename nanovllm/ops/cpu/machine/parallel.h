#pragma once

#include <cstdint>
#include <functional>

namespace nanovllm::cpu {

/// Sets how many threads parallel_for() uses when it is called from this thread, itself included;
/// at least 1. The helper threads live until the number changes or this thread ends.
void set_num_threads(int num_threads);
int num_threads();

using TaskFunction = std::function<void(int64_t task, int thread)>;

/// Calls function(task, thread) for each task in [0, num_tasks), with a thread in [0,
/// num_threads()). The next free thread takes the next task, and the caller is one of the threads.
/// So nobody waits for a helper that sleeps, or that other programs keep from running. That is why
/// this is not OpenMP, whose barriers wait for every thread: beside other busy programs a GEMM of 4
/// us took 12 to 28 ms. After an exception no further task starts, and the first exception is
/// thrown again here. Calls must not be nested.
void parallel_for(int64_t num_tasks, const TaskFunction& function);
/// parallel_for() on `num_threads` threads, whose helpers end with the call. Throws UserError if
/// not all of them can be started.
void parallel_for_once(int num_threads, int64_t num_tasks, const TaskFunction& function);

}  // namespace nanovllm::cpu
