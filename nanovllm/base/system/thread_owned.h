#pragma once

#include <pthread.h>

#include <memory>
#include <new>

namespace nanovllm {

/// The calling thread's own T, made at its first use and destroyed when the thread ends (not at
/// exit() in the thread that calls it). A `thread_local T` would do, but that it allocates memory
/// for its destructor, and where there is none glibc ends the process.
template <class T>
T& thread_owned() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    if (::pthread_key_create(&made, [](void* p) { delete static_cast<T*>(p); }) != 0)
      throw std::bad_alloc();
    return made;
  }();
  thread_local T* mine = nullptr;
  if (mine == nullptr) {
    auto made = std::make_unique<T>();
    if (::pthread_setspecific(key, made.get()) != 0) throw std::bad_alloc();
    mine = made.release();
  }
  return *mine;
}

}  // namespace nanovllm
