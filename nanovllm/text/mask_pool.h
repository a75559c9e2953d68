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
  struct Job {
    const Constraint* constraint;
    std::span<int32_t> bits;  ///< for Constraint::fill()
  };

  MaskPool() = default;
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;
  ~MaskPool();

  /// Does all of the jobs. One thread at a time may call it.
  void fill(std::span<const Job> jobs);

 private:
  static constexpr size_t kFewJobs = 16;  // that one thread does as soon as several would
  static constexpr unsigned kMaxThreads = 3;
  void start_threads();
  void work();
  /// Does jobs until none is left that nobody has begun.
  void do_jobs(std::unique_lock<std::mutex>& lock);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::span<const Job> jobs_;
  size_t next_ = 0, num_done_ = 0;
  bool stops_ = false;
};

}  // namespace nanovllm
