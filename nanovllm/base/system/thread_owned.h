#pragma once

#include <pthread.h>

#include <memory>
#include <new>

namespace nanovllm {

/// The calling thread's own T. It is made at the first use and destroyed when the thread ends (but
/// not in the thread that calls exit()). Unlike `thread_local T`, this throws std::bad_alloc when
/// memory is short: glibc allocates memory to register the destructor of a thread_local, and aborts
/// if it fails.
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
