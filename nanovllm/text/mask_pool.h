#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "nanovllm/text/constraint.h"

namespace nanovllm {

/// Finds what the constraints of a step allow, with a few threads if they are many: the device
/// waits for the masks if they take longer than the step's forward pass.
class MaskPool {
 public:
  MaskPool() = default;
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;
  ~MaskPool();

  /// Calls Constraint::fill() of each of them with its equal part of `masks`. One thread at a time
  /// may call it.
  void fill(std::span<const Constraint* const> constraints, std::span<int32_t> masks);

 private:
  static constexpr size_t kFew = 16;  // that one thread does as soon as several would
  static constexpr unsigned kMaxThreads = 3;
  void start_threads();
  void work();
  /// Fills masks until none is left that nobody has begun.
  void fill_next(std::unique_lock<std::mutex>& lock);
  void fill(size_t i) const { constraints_[i]->fill(masks_.subspan(i * num_words_, num_words_)); }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<const Constraint* const> constraints_;
  std::span<int32_t> masks_;
  size_t num_words_ = 0;  // of each mask
  size_t next_ = 0, num_done_ = 0;
  bool stops_ = false;
};

}  // namespace nanovllm
