#include "nanovllm/ops/cpu/machine/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "nanovllm/base/system/thread_owned.h"
#include "nanovllm/base/system/threads.h"

namespace nanovllm::cpu {

namespace {

// A helper polls for work this many times before it sleeps: about 50 us, longer than the pauses
// within a step.
constexpr int kPollsBeforeSleep = 2000;
// The caller checks this many times whether the last tasks have ended before it yields its core.
constexpr int kPollsBeforeYield = 2000;

/// The helpers of one calling thread. A ticket counts the tasks taken: the job's number in its high
/// half, the next task in its low half. While the caller prepares a job the low half is beyond any
/// number of tasks, so a thread that has read the fields of one job cannot take a task of another.
/// Fields that many threads write have cache lines of their own.
class Pool {  // NOLINT(clang-analyzer-optin.performance.Padding)
 public:
  explicit Pool(int num_threads) {
    helpers_.reserve(static_cast<size_t>(num_threads) - 1);
    try {
      for (int thread = 1; thread < num_threads; ++thread)
        helpers_.push_back(
            start_thread("a thread of the CPU backend", [this, thread] { help(thread); }));
    } catch (...) {
      stop();  // ends the threads that did start
      throw;
    }
  }
  ~Pool() { stop(); }

  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  void run(int64_t num_tasks, const TaskFunction& function) {
    const uint64_t job = (ticket_.load() >> 32) + 1;
    ticket_ = (job << 32) | kClosed;
    num_tasks_ = num_tasks;
    function_ = &function;
    num_done_ = 0;
    ticket_ = job << 32;
    wake();
    work(0);
    for (int polls = 0; num_done_.load() < num_tasks; ++polls) {
      if (polls < kPollsBeforeYield) __builtin_ia32_pause();
      else std::this_thread::yield();
    }
    if (failed_.load()) {
      failed_ = false;
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
  }

 private:
  static constexpr uint64_t kClosed = 0xffffffff;

  void stop() {
    stop_ = true;
    wake();
    helpers_.clear();  // joins them
  }

  void wake() {
    ++wake_ups_;
    wake_ups_.notify_all();
  }

  void help(int thread) {
    uint32_t seen = 0;
    for (int polls = 0;;) {
      const uint32_t now = wake_ups_.load();
      if (stop_.load()) return;
      if (now != seen) {
        seen = now;
        work(thread);
        polls = 0;
      } else if (++polls < kPollsBeforeSleep) {
        __builtin_ia32_pause();
      } else {
        wake_ups_.wait(seen);
        polls = 0;
      }
    }
  }

  void work(int thread) {
    uint64_t ticket = ticket_.load();
    for (;;) {
      const int64_t num_tasks = num_tasks_.load();
      const TaskFunction* const function = function_.load();
      const auto next = static_cast<int64_t>(ticket & kClosed);
      if (next >= num_tasks) return;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      try {
        if (!failed_.load()) (*function)(next, thread);
      } catch (...) {
        const std::lock_guard lock(error_mutex_);
        if (!failed_.load()) error_ = std::current_exception();
        failed_ = true;
      }
      ++num_done_;
      ticket = ticket_.load();
    }
  }

  alignas(64) std::atomic<uint64_t> ticket_ = kClosed;
  std::atomic<int64_t> num_tasks_ = 0;
  std::atomic<const TaskFunction*> function_ = nullptr;
  alignas(64) std::atomic<int64_t> num_done_ = 0;
  alignas(64) std::atomic<uint32_t> wake_ups_ = 0;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> failed_ = false;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::jthread> helpers_;  // the last member, because they use all others
};

/// The helpers of the calling thread; null if it works alone.
std::unique_ptr<Pool>& own_pool() { return thread_owned<std::unique_ptr<Pool>>(); }

}  // namespace

void set_num_threads(int num_threads) {
  num_threads = std::max(num_threads, 1);
  if (num_threads != cpu::num_threads())
    own_pool() = num_threads == 1 ? nullptr : std::make_unique<Pool>(num_threads);
}

int num_threads() { return own_pool() ? own_pool()->num_threads() : 1; }

void parallel_for(int64_t num_tasks, const TaskFunction& function) {
  if (own_pool() != nullptr && num_tasks > 1) return own_pool()->run(num_tasks, function);
  for (int64_t i = 0; i < num_tasks; ++i) function(i, 0);
}

void parallel_for_once(int num_threads, int64_t num_tasks, const TaskFunction& function) {
  Pool(std::max(static_cast<int>(std::min<int64_t>(num_threads, num_tasks)), 1))
      .run(num_tasks, function);
}

}  // namespace nanovllm::cpu
