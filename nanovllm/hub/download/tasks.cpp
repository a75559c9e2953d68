#include "nanovllm/hub/download/tasks.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/base/system/threads.h"

namespace nanovllm::hub {

namespace {

constexpr size_t kMaxThreads = 8;

/// While it exists, threads that are started get no signals: Ctrl-C is for the caller's thread, and
/// a broken connection must not end the process.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

void run_tasks(std::deque<std::function<void()>> tasks, std::atomic<bool>& stop,
               const std::function<void()>& tick) {
  std::mutex mutex;  // guards all of the following
  std::condition_variable ended;
  std::exception_ptr thrown;
  size_t num_running = 0;
  const auto fail_with = [&](std::exception_ptr error) {
    const std::lock_guard lock(mutex);
    if (!thrown) thrown = std::move(error);
    stop = true;
  };
  const auto work = [&] {
    for (;;) {
      std::function<void()> task;
      {
        const std::lock_guard lock(mutex);
        if (tasks.empty() || stop) {
          --num_running;
          ended.notify_one();
          return;
        }
        task = std::move(tasks.front());
        tasks.pop_front();
      }
      try {
        task();
      } catch (...) {
        fail_with(std::current_exception());
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    const size_t num_threads = std::min(tasks.size(), kMaxThreads);
    threads.reserve(num_threads);
    for (size_t i = 0; i < num_threads; ++i) {
      const SignalsBlocked blocked;
      const std::lock_guard lock(mutex);
      try {
        threads.push_back(start_thread("a thread for a download", work));
      } catch (const UserError&) {
        if (threads.empty()) throw;
        break;  // fewer connections suffice
      }
      ++num_running;
    }
    constexpr std::chrono::milliseconds kBetweenTicks{100};
    std::unique_lock lock(mutex);
    while (num_running > 0) {
      ended.wait_for(lock, kBetweenTicks);
      if (stop) continue;
      lock.unlock();
      try {
        tick();
      } catch (...) {
        fail_with(std::current_exception());
      }
      lock.lock();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace nanovllm::hub
