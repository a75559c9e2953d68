#pragma once

#include <cuda_runtime.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "nanovllm/ops/backend.h"

namespace nanovllm::cuda {

/// Copies weights to the device at the speed of the bus. Several threads read them into pinned
/// memory; each has two pieces of it, and fills one while the other is copied. The threads go on
/// with the next weight while the last pieces of one are copied, and while the caller does
/// something else.
class WeightUpload {
 public:
  /// The threads call `progress` after each piece.
  explicit WeightUpload(std::function<void()> progress);
  ~WeightUpload();
  WeightUpload(const WeightUpload&) = delete;

  /// Copy all rows of `from` to `to` (device memory of `owner`), without gaps.
  struct Copy {
    void* to;
    WeightRows from;
    WeightPtr owner;  // lives until the rows are copied
  };
  /// Returns at once. Throws what WeightRows::read() has thrown since the last call.
  void copy(std::span<const Copy> copies);
  /// Returns when everything is copied. Throws as copy() does.
  void finish();

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    std::array<char*, 2> pieces = {};
    std::array<cudaEvent_t, 2> sent = {};
    int turn = 0;  // index of the piece that is filled next
  };
  /// Rows [first, first + count) of a copy.
  struct Task {
    std::shared_ptr<const Copy> copy;
    int64_t first, count;
  };
  /// Makes the pieces large enough for a row.
  void grow(size_t row_bytes);
  void stop();
  /// Waits until no task is left, and then throws the error if there was one.
  void wait(std::unique_lock<std::mutex>& lock);
  void serve(Lane& lane);
  void run(Lane& lane, const Task& task);

  std::function<void()> progress_;
  std::vector<Lane> lanes_;
  size_t piece_bytes_ = 0;
  int device_ = 0;

  // Shared by the threads and protected by the mutex.
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::deque<Task> tasks_;  // not started yet
  size_t num_busy_ = 0;     // lanes that are running a task
  std::exception_ptr error_;
  bool stopping_ = false;

  std::vector<std::jthread> threads_;  // one for each lane
};

}  // namespace nanovllm::cuda
