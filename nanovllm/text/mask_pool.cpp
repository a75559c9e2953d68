#include "nanovllm/text/mask_pool.h"

#include <algorithm>

namespace nanovllm {

MaskPool::~MaskPool() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskPool::fill(std::span<const Job> jobs) {
  if (jobs.size() <= kFewJobs) {
    for (const Job& job : jobs) job.constraint->fill(job.bits);
    return;
  }
  if (threads_.empty()) start_threads();
  std::unique_lock lock(mutex_);
  jobs_ = jobs;
  next_ = num_done_ = 0;
  changed_.notify_all();
  do_jobs(lock);
  changed_.wait(lock, [this] { return num_done_ == jobs_.size(); });
  jobs_ = {};
}

void MaskPool::do_jobs(std::unique_lock<std::mutex>& lock) {
  constexpr size_t kAtOnce = 4;  // a mask that is known takes a microsecond or two
  while (next_ < jobs_.size()) {
    const auto mine = jobs_.subspan(next_, std::min(kAtOnce, jobs_.size() - next_));
    next_ += mine.size();
    lock.unlock();
    for (const Job& job : mine) job.constraint->fill(job.bits);
    lock.lock();
    num_done_ += mine.size();
  }
  if (num_done_ == jobs_.size()) changed_.notify_all();
}

void MaskPool::work() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (next_ < jobs_.size()) do_jobs(lock);
    else changed_.wait(lock);
  }
}

void MaskPool::start_threads() {
  const unsigned num_cores = std::thread::hardware_concurrency();
  for (unsigned i = 1; i < std::min(num_cores, kMaxThreads + 1); ++i)
    threads_.emplace_back([this] { work(); });
}

}  // namespace nanovllm
