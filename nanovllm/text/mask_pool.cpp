#include "nanovllm/text/mask_pool.h"

#include <algorithm>
#include <system_error>

namespace nanovllm {

MaskPool::~MaskPool() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskPool::fill(std::span<const Constraint* const> constraints, std::span<int32_t> masks) {
  if (constraints.empty()) return;
  if (constraints.size() > kFew && threads_.empty()) start_threads();
  std::unique_lock lock(mutex_);
  constraints_ = constraints;
  masks_ = masks;
  num_words_ = masks.size() / constraints.size();
  next_ = num_done_ = 0;
  if (constraints.size() > kFew) changed_.notify_all();
  fill_next(lock);
  changed_.wait(lock, [this] { return num_done_ == constraints_.size(); });
}

void MaskPool::fill_next(std::unique_lock<std::mutex>& lock) {
  constexpr size_t kAtOnce = 4;  // a mask that is known takes a microsecond or two
  while (next_ < constraints_.size()) {
    const size_t begin = next_, end = std::min(begin + kAtOnce, constraints_.size());
    next_ = end;
    lock.unlock();
    for (size_t i = begin; i < end; ++i) fill(i);
    lock.lock();
    num_done_ += end - begin;
  }
  if (num_done_ == constraints_.size()) changed_.notify_all();
}

void MaskPool::work() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    if (next_ < constraints_.size()) fill_next(lock);
    else changed_.wait(lock);
  }
}

void MaskPool::start_threads() {
  const unsigned num_cores = std::thread::hardware_concurrency();
  try {
    for (unsigned i = 1; i < std::min(num_cores, kMaxThreads + 1); ++i)
      threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {  // no more threads may be created; fewer do it too
  }
}

}  // namespace nanovllm
