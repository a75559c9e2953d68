#include "nanovllm/ops/cuda/weight_upload.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "nanovllm/base/machine.h"
#include "nanovllm/ops/cuda/runtime.h"

namespace nanovllm::cuda {

namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;
/// One thread copies about 8 GB/s out of the page cache, the bus takes about 50.
constexpr int kMaxLanes = 8;

}  // namespace

WeightUpload::WeightUpload() : lanes_(static_cast<size_t>(std::min(num_usable_cpus(), kMaxLanes))) {
  cuda_check(cudaGetDevice(&device_), "device");
  for (Lane& lane : lanes_) {
    cuda_check(cudaStreamCreateWithFlags(&lane.stream, cudaStreamNonBlocking), "stream");
    for (char*& piece : lane.pieces)
      cuda_check(cudaMallocHost(reinterpret_cast<void**>(&piece), kPieceBytes), "pinned memory");
    for (cudaEvent_t& event : lane.sent)
      cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
  }
}

WeightUpload::~WeightUpload() {
  for (Lane& lane : lanes_) {
    for (char* piece : lane.pieces) cudaFreeHost(piece);
    for (cudaEvent_t event : lane.sent) cudaEventDestroy(event);
    cudaStreamDestroy(lane.stream);
  }
}

void WeightUpload::copy(void* to, const Tensor& from) {
  if (from.size() == 0) return;
  const auto size = static_cast<int64_t>(dtype_size(from.dtype));
  const int64_t row_bytes = (from.rank == 1 ? 1 : from.shape[1]) * size;
  const int64_t stride = from.row_stride * size;
  const int64_t piece_rows = std::max<int64_t>(kPieceBytes / row_bytes, 1);
  const int64_t num_pieces = (from.shape[0] + piece_rows - 1) / piece_rows;
  const auto num_lanes = static_cast<int>(std::min<int64_t>(num_pieces, std::ssize(lanes_)));
  const auto work = [&](int index) {
    cuda_check(cudaSetDevice(device_), "device");
    Lane& lane = lanes_[static_cast<size_t>(index)];
    for (int64_t piece = index, round = 0; piece < num_pieces; piece += num_lanes, ++round) {
      const auto turn = static_cast<size_t>(round % 2);
      cuda_check(cudaEventSynchronize(lane.sent[turn]), "weights");
      const int64_t first = piece * piece_rows;
      const int64_t rows = std::min(piece_rows, from.shape[0] - first);
      // A row longer than a piece goes in parts.
      for (int64_t at = 0; at < row_bytes; at += kPieceBytes) {
        const int64_t width = std::min(row_bytes - at, kPieceBytes);
        if (at > 0) cuda_check(cudaStreamSynchronize(lane.stream), "weights");
        const char* source = from.as<const char>() + first * stride + at;
        if (stride == row_bytes && width == row_bytes) {
          std::memcpy(lane.pieces[turn], source, static_cast<size_t>(rows * width));
        } else {
          for (int64_t r = 0; r < rows; ++r)
            std::memcpy(lane.pieces[turn] + r * width, source + r * stride,
                        static_cast<size_t>(width));
        }
        cuda_check(
            cudaMemcpyAsync(static_cast<char*>(to) + first * row_bytes + at, lane.pieces[turn],
                            static_cast<size_t>(rows * width), cudaMemcpyHostToDevice, lane.stream),
            "weights");
      }
      cuda_check(cudaEventRecord(lane.sent[turn], lane.stream), "weights");
    }
    cuda_check(cudaStreamSynchronize(lane.stream), "weights");
  };
  if (num_lanes == 1) return work(0);
  std::vector<std::exception_ptr> errors(static_cast<size_t>(num_lanes));
  std::vector<std::thread> threads;
  threads.reserve(errors.size());
  for (int i = 0; i < num_lanes; ++i)
    threads.emplace_back([&, i] {
      try {
        work(i);
      } catch (...) {
        errors[static_cast<size_t>(i)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace nanovllm::cuda
