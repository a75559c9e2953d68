#include "nanovllm/ops/cuda/backend/cuda_backend.h"

#include <algorithm>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"

namespace nanovllm::cuda {

CudaBackend::CudaBackend(CudaKernels kernels, Rank rank)
    : device_(kernels, rank),
      scope_(std::in_place, device_.context),
      gemms_(
          device_.where, device_.kernels, rank.index,
          [this](size_t bytes) {
            const ContextScope here(device_.context);
            return device_.allocate(bytes);
          },
          [this](cudaEvent_t event) { device_.wait(event); }),
      weights_(device_, gemms_),
      upload_(device_),
      attention_(device_),
      sampler_(device_),
      graphs_(device_) {
  scope_.reset();
}

CudaBackend::~CudaBackend() {
  scope_.emplace(device_.context);
  if (collectives_) collectives_->drain();
  cudaStreamSynchronize(device_.where.stream);
}

std::string CudaBackend::describe() const {
  const cudaDeviceProp& gpu = device_.properties;
  return fmt::format(
      "{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB; attention by {}; GEMMs of "
      "few tokens{} by own kernels, others by cuBLASLt",
      gpu.name, gpu.major, gpu.minor, gpu.multiProcessorCount,
      static_cast<double>(gpu.totalGlobalMem) / (1 << 30),
      device_.portable() ? "mma and asynchronous copies" : "wgmma and bulk copies",
      device_.portable()
          ? ""
          : ", of more tokens where they are faster, and of a batch's logits with the sampler,");
}

// -- ranks

void CudaBackend::connect(Communicator& ranks, int64_t vocab_size) {
  const ContextScope here(device_.context);
  device_.collectives = &collectives_.emplace(device_.where, ranks, device_.kernels.sum_norm);
  vocab_ = share(vocab_size, kShareUnit, ranks.rank());
  sampler_.connect(vocab_size, vocab_);
}

void CudaBackend::all_reduce(Tensor x) {
  const ContextScope here(device_.context);
  if (collectives_) collectives_->all_reduce(x);
}

// -- memory and weights

Memory CudaBackend::memory() const {
  const ContextScope here(device_.context);
  return device_.memory();
}

Buffer CudaBackend::allocate(size_t bytes) {
  const ContextScope here(device_.context);
  return device_.allocate(bytes);
}

void CudaBackend::upload(void* device, const void* host, size_t bytes) {
  const ContextScope here(device_.context);
  device_.upload(device, host, bytes);
}

void CudaBackend::download(void* host, const void* device, size_t bytes) {
  const ContextScope here(device_.context);
  device_.download(host, device, bytes);
}

void CudaBackend::load_weights(const std::function<void()>& load) {
  const ContextScope here(device_.context);
  weights_.load(load);
}

WeightPtr CudaBackend::pack(std::span<const WeightRows> parts, DType dtype) {
  const ContextScope here(device_.context);
  return weights_.pack(parts, dtype);
}

// -- steps

// A step is planned from the bounds that the host knows: which attention kernels run, and who draws
// which row. Then one copy brings it to the device, where its first kernel derives the rest.
void CudaBackend::begin_step(const KvCache& kv) {
  const ContextScope here(device_.context);
  weights_.end_uploads();
  sampler_.plan(step_);
  attention_.plan(step_, kv);
  upload_.publish(step_, kv, sampler_, attention_);
}

void CudaBackend::replay(int64_t size, const std::function<void()>& enqueue) {
  const ContextScope here(device_.context);
  graphs_.replay({size, attention_.decode_cluster(), sampler_.draws_in_gemm()}, enqueue);
}

void CudaBackend::copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies) {
  const ContextScope here(device_.context);
  device_.grow(copies_, copies.size_bytes());
  cuda_check(cudaMemcpyAsync(copies_.memory.get(), copies.data(), copies.size_bytes(),
                             cudaMemcpyHostToDevice, device_.where.stream),
             "copies");
  cuda::copy_blocks(device_.where, kv,
                    {static_cast<const BlockCopy*>(copies_.memory.get()), copies.size()});
}

}  // namespace nanovllm::cuda

/// ops/cuda_library.cpp looks this function up with dlsym().
extern "C" __attribute__((visibility("default"))) nanovllm::Backend* nanovllm_make_cuda_backend(
    nanovllm::CudaKernels kernels, nanovllm::Rank rank) {
#ifdef NANOVLLM_CUDA_DRAFT
  nanovllm::fail(
      "the CUDA backend is a draft: it was compiled without optimisation on a machine "
      "without a GPU; `make build` compiles the whole of it");
#endif
  return new nanovllm::cuda::CudaBackend(kernels, rank);
}
