#include "nanovllm/ops/cuda/backend/parts/device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/backend/parts/step.h"

namespace nanovllm::cuda {

namespace {

constexpr double kGiB = 1 << 30;

/// What this process has allocated on a GPU, for all backends there.
std::atomic<size_t>& allocated_bytes(int gpu) {
  constexpr size_t kMostGpus = 64;
  static std::array<std::atomic<size_t>, kMostGpus> bytes;
  return bytes.at(static_cast<size_t>(gpu));
}

CUcontext context_of(Rank rank) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  require(error == cudaSuccess && count > 0, "no CUDA device: {}",
          error == cudaSuccess ? "the driver shows none" : cudaGetErrorString(error));
  require(rank.world <= count, "tensor_parallel_size is {}; {} GPU{} visible", rank.world, count,
          count == 1 ? " is" : "s are");
  return primary_context(rank.index);
}

}  // namespace

Device::Device(const CudaKernels& kernels_, Rank rank_)
    : rank(rank_), context(context_of(rank_)), kernels(kernels_) {
  const ContextScope here(context);
  cuda_check(cudaGetDeviceProperties(&properties, rank.index), "device");
  require(properties.major >= 8, "{} has compute capability {}.{}; 8.0 or newer is needed",
          properties.name, properties.major, properties.minor);
  where.num_sms = properties.multiProcessorCount;
  where.overlaps = has_dependent_launch();
  // If portable kernels are requested, they must be such that every GPU can run.
  where.shared_bytes = kernels.portable ? kLeastSharedBytes : most_shared_bytes();
  kernels.portable = kernels.portable || properties.major != 9;
  cuda_check(cudaStreamCreateWithFlags(&where.stream, cudaStreamNonBlocking), "stream");
  cuda_check(cudaEventCreateWithFlags(&stream_end_, cudaEventDisableTiming), "event");
}

Device::~Device() {
  const ContextScope here(context);
  cudaEventDestroy(stream_end_);
  cudaStreamDestroy(where.stream);
}

Memory Device::memory() const {
  Memory memory;
  cuda_check(cudaMemGetInfo(&memory.free, &memory.total), "memory");
  memory.own = allocated_bytes(rank.index);
  return memory;
}

Buffer Device::allocate(size_t bytes) {
  void* p = nullptr;
  if (cudaMalloc(&p, std::max<size_t>(bytes, 1)) != cudaSuccess) {
    cudaGetLastError();
    fail(
        "the GPU has no {:.2f} GiB left: {}; lower --gpu-memory-utilization, "
        "--max-num-batched-tokens or --max-num-seqs, or end other programs",
        static_cast<double>(bytes) / kGiB, holders(memory()));
  }
  allocated_bytes(rank.index) += bytes;
  Buffer buffer(p, [bytes, gpu = rank.index](void* memory) {
    cudaFree(memory);
    allocated_bytes(gpu) -= bytes;
  });
  // Nobody waits for the zeros of a large cache: what uses memory is enqueued on the same stream.
  // Other streams must wait for this one first.
  cuda_check(cudaMemsetAsync(p, 0, bytes, where.stream), "memory");
  return buffer;
}

Buffer Device::allocate_pinned(size_t bytes) {
  void* p = nullptr;
  cuda_check(cudaMallocHost(&p, bytes), "pinned memory");
  return {p, [](void* memory) { cudaFreeHost(memory); }};
}

void Device::grow(Growing& buffer, size_t bytes) {
  if (bytes <= buffer.bytes) return;
  wait_for_stream();
  if (buffer.in_graphs) ++num_replaced;
  buffer.memory.reset();
  buffer.bytes = std::bit_ceil(std::max<size_t>(bytes, 4096));
  buffer.memory = buffer.pinned ? allocate_pinned(buffer.bytes) : allocate(buffer.bytes);
  wait_for_stream();
}

void Device::upload(void* device, const void* host, size_t bytes) {
  cuda_check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, where.stream), "upload");
  wait_for_stream();
}

void Device::download(void* host, const void* device, size_t bytes) {
  cuda_check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, where.stream),
             "download");
  wait_for_stream();
}

void Device::wait(cudaEvent_t event) {
  if (collectives != nullptr) collectives->wait(event);
  else cuda_check(cudaEventSynchronize(event), "step");
}

void Device::wait_for_stream() {
  cuda_check(cudaEventRecord(stream_end_, where.stream), "step");
  wait(stream_end_);
}

}  // namespace nanovllm::cuda
