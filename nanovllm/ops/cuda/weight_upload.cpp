#include "nanovllm/ops/cuda/weight_upload.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "nanovllm/base/machine.h"
#include "nanovllm/ops/cuda/runtime.h"

namespace nanovllm::cuda {

namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
/// One thread copies about 8 GB/s out of the page cache, the bus takes about 50.
constexpr int kMaxLanes = 8;

}  // namespace

WeightUpload::WeightUpload() : lanes_(static_cast<size_t>(std::min(num_usable_cpus(), kMaxLanes))) {
  cuda_check(cudaGetDevice(&device_), "device");
  for (Lane& lane : lanes_) {
    cuda_check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream");
    for (cudaEvent_t& event : lane.sent)
      cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
  grow(kPieceBytes);
}

void WeightUpload::grow(size_t row_bytes) {
  if (row_bytes <= piece_bytes_) return;
  piece_bytes_ = row_bytes;
  for (Lane& lane : lanes_)
    for (char*& piece : lane.pieces) {
      cudaFreeHost(std::exchange(piece, nullptr));
      cuda_check(cudaMallocHost(reinterpret_cast<void**>(&piece), piece_bytes_), "pinned memory");
    }
}

WeightUpload::~WeightUpload() {
  for (Lane& lane : lanes_) {
    for (char* piece : lane.pieces) cudaFreeHost(piece);
    for (cudaEvent_t event : lane.sent) cudaEventDestroy(event);
    cudaStreamDestroy(lane.stream);
  }
}

void WeightUpload::copy(void* to, const WeightRows& from) {
  if (from.num_rows() == 0 || from.num_columns() == 0) return;
  const size_t row_bytes = from.row_bytes();
  grow(row_bytes);
  const auto piece_rows = static_cast<int64_t>(piece_bytes_ / row_bytes);
  const int64_t num_pieces = (from.num_rows() + piece_rows - 1) / piece_rows;
  const auto num_lanes = static_cast<int>(std::min<int64_t>(num_pieces, std::ssize(lanes_)));
  const auto work = [&](int index) {
    cuda_check(cudaSetDevice(device_), "device");
    Lane& lane = lanes_[static_cast<size_t>(index)];
    for (int64_t piece = index, round = 0; piece < num_pieces; piece += num_lanes, ++round) {
      const auto turn = static_cast<size_t>(round % 2);
      cuda_check(cudaEventSynchronize(lane.sent[turn]), "weights");
      const int64_t first = piece * piece_rows;
      const int64_t rows = std::min(piece_rows, from.num_rows() - first);
      from.read(first, rows, lane.pieces[turn]);
      cuda_check(cudaMemcpyAsync(static_cast<char*>(to) + static_cast<size_t>(first) * row_bytes,
                                 lane.pieces[turn], static_cast<size_t>(rows) * row_bytes,
                                 cudaMemcpyHostToDevice, lane.stream),
                 "weights");
      cuda_check(cudaEventRecord(lane.sent[turn], lane.stream), "weights");
    }
    cuda_check(cudaStreamSynchronize(lane.stream), "weights");
  };
  if (num_lanes == 1) return work(0);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(num_lanes));
  {
    std::vector<std::jthread> threads;  // joined also where one more cannot be started
    for (int i = 0; i < num_lanes; ++i)
      threads.emplace_back([&, i] {
        try {
          work(i);
        } catch (...) {
          errors[static_cast<size_t>(i)] = std::current_exception();
        }
      });
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace nanovllm::cuda
