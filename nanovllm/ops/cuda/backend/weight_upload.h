#pragma once

#include <cuda_runtime.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "nanovllm/ops/backend.h"

namespace nanovllm::cuda {

/// Copies weights to the device at the speed of the bus. Several threads read them into pinned
/// memory; each has two pieces of it, and fills one while the other is copied. The threads go on
/// with the next weight while the last pieces of one are copied, and while memory is allocated.
class WeightUpload {
 public:
  WeightUpload();
  ~WeightUpload();
  WeightUpload(const WeightUpload&) = delete;

  /// Copy all rows of `from` to `to` (device memory of `owner`), without gaps.
  struct Copy {
    void* to;
    WeightRows from;
    WeightPtr owner;  // lives until the rows are copied
  };
  /// Returns when few pieces are left to be read, so that the caller's progress is that of the
  /// copies. Throws what WeightRows::read() has thrown since the last call.
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
  /// Waits until at most `most` tasks have not been started. With 0, and before it throws, it waits
  /// until none is running either.
  void wait(std::unique_lock<std::mutex>& lock, size_t most);
  void serve(Lane& lane);
  void run(Lane& lane, const Task& task);

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
