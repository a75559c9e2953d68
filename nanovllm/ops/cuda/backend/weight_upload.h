#pragma once

#include <cuda_runtime.h>

#include <array>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "nanovllm/ops/weight_rows.h"

namespace nanovllm::cuda {

/// Brings weights to the device at the speed of the bus: several threads read them into pinned
/// memory, each with two pieces, one of which is on its way.
class WeightUpload {
 public:
  WeightUpload();
  ~WeightUpload();
  WeightUpload(const WeightUpload&) = delete;

  /// All rows of `from` to `to`, dense.
  struct Copy {
    void* to;
    WeightRows from;
  };
  /// Done when it returns. Throws what reading throws.
  void copy(std::span<const Copy> copies);

 private:
  struct Lane {
    cudaStream_t stream = nullptr;
    std::array<char*, 2> pieces = {};
    std::array<cudaEvent_t, 2> sent = {};
    int turn = 0;  // of the pieces
  };
  /// Rows [first, first + count) of a copy.
  struct Task {
    const Copy* copy;
    int64_t first, count;
  };
  /// Makes pieces large enough for a row.
  void grow(size_t row_bytes);
  void stop();
  void serve(Lane& lane);
  void run(Lane& lane, const Task& task);

  std::vector<Lane> lanes_;
  size_t piece_bytes_ = 0;
  int device_ = 0;

  // What the threads share, under the mutex.
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Task> tasks_;  // that nobody has taken yet
  size_t num_busy_ = 0;      // lanes
  std::exception_ptr error_;
  bool stopping_ = false;

  std::vector<std::jthread> threads_;  // one for each lane
};

}  // namespace nanovllm::cuda
