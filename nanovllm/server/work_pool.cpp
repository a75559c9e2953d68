#include "nanovllm/server/work_pool.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>

#include "nanovllm/server/out_of_memory.h"

namespace nanovllm::server {

namespace {

// Niceness goes up to 19. With a step of 2, each lane gets two thirds of the share of the one
// before.
constexpr int kNiceStep = 2;

Task<> run(std::function<void()> work) {
  work();
  co_return;
}

}  // namespace

WorkPool::WorkPool()
    : lanes_{asio::thread_pool(2), asio::thread_pool(1), asio::thread_pool(1), asio::thread_pool(1),
             asio::thread_pool(1)} {
  for (size_t i = 1; i < kNumLanes; ++i)
    asio::post(lanes_[i], [nice = static_cast<int>(i) * kNiceStep] {
      // On Linux each thread has its own priority. Without the right to change it, it stays as it
      // is.
      ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), nice);
      ::pthread_setname_np(::pthread_self(), "large requests");
      set_patience(std::chrono::milliseconds(0));
    });
}

WorkPool::~WorkPool() {
  for (asio::thread_pool& lane : lanes_) lane.join();
}

asio::thread_pool& WorkPool::lane(size_t bytes) {
  size_t i = 0;
  while (i + 1 < kNumLanes && bytes > kSmallest << 2 * i) ++i;
  return lanes_[i];
}

Task<> on_pool(asio::thread_pool& pool, std::function<void()> work) {
  Task<> there = run(std::move(work));
  co_await asio::co_spawn(pool, std::move(there), asio::use_awaitable);
}

}  // namespace nanovllm::server
