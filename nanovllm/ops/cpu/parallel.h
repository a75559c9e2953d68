#pragma once

#include <cstdint>
#include <type_traits>

namespace nanovllm::cpu {

/// Threads that parallel_for() uses when called from this thread, itself included; at least 1. Its
/// helpers live until the number changes or the thread ends. oneDNN's OpenMP threads are as many.
void set_num_threads(int num_threads);
int num_threads();

namespace detail {
using Task = void (*)(void* function, int64_t task, int thread);
void run(int64_t num_tasks, Task task, void* function);
}  // namespace detail

/// function(task, thread) for each task in [0, num_tasks), thread in [0, num_threads()). Tasks are
/// taken in ascending order by whoever is free, and the caller is one of them: a helper that
/// sleeps, or that other programs keep from running, is not waited for. That is why this is not
/// OpenMP, whose barriers wait for every thread: beside other busy programs a product of 4 us
/// took 12 to 28 ms. The first exception of a task is thrown again here. Not to be nested.
template <class Function>
void parallel_for(int64_t num_tasks, Function&& function) {
  detail::run(
      num_tasks,
      [](void* f, int64_t task, int thread) {
        (*static_cast<std::remove_reference_t<Function>*>(f))(task, thread);
      },
      const_cast<void*>(static_cast<const void*>(&function)));
}

}  // namespace nanovllm::cpu
