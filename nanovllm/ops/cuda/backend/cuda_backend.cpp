#include "nanovllm/ops/cuda/backend/cuda_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/backend/step.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/quantized/pack.h"

namespace nanovllm::cuda {

namespace {

constexpr double kGiB = 1 << 30;

/// What this process has allocated on a GPU, for all backends there.
std::atomic<size_t>& allocated_bytes(int gpu) {
  constexpr size_t kMostGpus = 64;
  static std::array<std::atomic<size_t>, kMostGpus> bytes;
  return bytes.at(static_cast<size_t>(gpu));
}

}  // namespace

CudaBackend::CudaBackend(CudaKernels kernels, Rank rank) : rank_(rank), kernels_(kernels) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  require(error == cudaSuccess && count > 0, "no CUDA device: {}",
          error == cudaSuccess ? "the driver shows none" : cudaGetErrorString(error));
  require(rank.world <= count, "tensor_parallel_size is {}; {} GPU{} visible", rank.world, count,
          count == 1 ? " is" : "s are");
  context_ = primary_context(rank.index);
  const ContextScope here(context_);
  cuda_check(cudaGetDeviceProperties(&device_, rank.index), "device");
  require(device_.major >= 8, "{} has compute capability {}.{}; 8.0 or newer is needed",
          device_.name, device_.major, device_.minor);
  portable_ = kernels.portable || device_.major != 9;
  where_.num_sms = device_.multiProcessorCount;
  where_.overlaps = has_dependent_launch();
  // If portable kernels are requested, they must be such that every GPU can run.
  where_.shared_bytes = kernels.portable ? kLeastSharedBytes : most_shared_bytes();
  cuda_check(cudaStreamCreateWithFlags(&where_.stream, cudaStreamNonBlocking), "stream");
  cuda_check(cudaStreamCreateWithFlags(&words_stream_, cudaStreamNonBlocking), "stream");
  kernels_.portable = portable_;
  gemms_.emplace(
      where_, kernels_, rank.index, [this](size_t bytes) { return allocate(bytes); },
      [this](cudaEvent_t event) { wait(event); });
  for (Growing& buffer : pinned_input_) buffer.pinned = true;
  for (cudaEvent_t* event : events())
    cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "event");
}

CudaBackend::~CudaBackend() {
  const ContextScope here(context_);
  if (collectives_) collectives_->drain();
  cudaStreamSynchronize(where_.stream);
  forget_graphs();
  collectives_.reset();
  for (cudaEvent_t* event : events()) cudaEventDestroy(*event);
  gemms_.reset();
  cudaStreamDestroy(words_stream_);
  cudaStreamDestroy(where_.stream);
}

std::vector<cudaEvent_t*> CudaBackend::events() {
  std::vector<cudaEvent_t*> all = {&stream_end_};
  for (cudaEvent_t& event : input_sent_) all.push_back(&event);
  for (Results& results : results_) all.push_back(&results.there);
  for (Words& words : words_sent_) all.insert(all.end(), {&words.there, &words.used});
  return all;
}

std::string CudaBackend::describe() const {
  return fmt::format(
      "{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB; attention by {}; GEMMs of "
      "few tokens{} by own kernels, others by cuBLASLt",
      device_.name, device_.major, device_.minor, device_.multiProcessorCount,
      static_cast<double>(device_.totalGlobalMem) / kGiB,
      portable_ ? "mma and asynchronous copies" : "wgmma and bulk copies",
      portable_
          ? ""
          : ", of more tokens where they are faster, and of a batch's logits with the sampler,");
}

// -- ranks

void CudaBackend::connect(Communicator& ranks, int64_t vocab_size) {
  const ContextScope here(context_);
  collectives_.emplace(where_, ranks, kernels_.sum_norm);
  vocab_size_ = vocab_size;
  vocab_ = share(vocab_size, kShareUnit, ranks.rank());
}

void CudaBackend::all_reduce(Tensor x) {
  const ContextScope here(context_);
  if (collectives_) collectives_->all_reduce(x);
}

void CudaBackend::wait(cudaEvent_t event) {
  if (collectives_) collectives_->wait(event);
  else cuda_check(cudaEventSynchronize(event), "step");
}

void CudaBackend::wait_for_stream() {
  cuda_check(cudaEventRecord(stream_end_, where_.stream), "step");
  wait(stream_end_);
}

// -- memory

Memory CudaBackend::memory() const {
  const ContextScope here(context_);
  Memory memory;
  cuda_check(cudaMemGetInfo(&memory.free, &memory.total), "memory");
  memory.own = allocated_bytes(rank_.index);
  return memory;
}

Buffer CudaBackend::allocate(size_t bytes) {
  const ContextScope here(context_);
  void* p = nullptr;
  if (cudaMalloc(&p, std::max<size_t>(bytes, 1)) != cudaSuccess) {
    cudaGetLastError();
    fail(
        "the GPU has no {:.2f} GiB left: {}; lower --gpu-memory-utilization, "
        "--max-num-batched-tokens or --max-num-seqs, or end other programs",
        static_cast<double>(bytes) / kGiB, holders(memory()));
  }
  allocated_bytes(rank_.index) += bytes;
  Buffer buffer(p, [bytes, gpu = rank_.index](void* memory) {
    cudaFree(memory);
    allocated_bytes(gpu) -= bytes;
  });
  // Nobody waits for the zeros of a large cache: what uses memory is enqueued on the same stream.
  // Other streams must wait for this one first.
  cuda_check(cudaMemsetAsync(p, 0, bytes, where_.stream), "memory");
  return buffer;
}

Buffer CudaBackend::allocate_pinned(size_t bytes) {
  void* p = nullptr;
  cuda_check(cudaMallocHost(&p, bytes), "pinned memory");
  return {p, [](void* memory) { cudaFreeHost(memory); }};
}

void CudaBackend::upload(void* device, const void* host, size_t bytes) {
  const ContextScope here(context_);
  cuda_check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, where_.stream), "upload");
  wait_for_stream();
}

void CudaBackend::download(void* host, const void* device, size_t bytes) {
  const ContextScope here(context_);
  cuda_check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, where_.stream),
             "download");
  wait_for_stream();
}

void CudaBackend::grow(Growing& buffer, size_t bytes) {
  if (bytes <= buffer.bytes) return;
  wait_for_stream();
  if (buffer.in_graphs) forget_graphs();
  buffer.memory.reset();
  buffer.bytes = std::bit_ceil(std::max<size_t>(bytes, 4096));
  buffer.memory = buffer.pinned ? allocate_pinned(buffer.bytes) : allocate(buffer.bytes);
  wait_for_stream();
}

// -- weights and blocks

void CudaBackend::begin_upload() {
  if (weight_upload_) return;
  weight_upload_.emplace([this] {
    if (collectives_) collectives_->ranks().progress().fetch_add(1, std::memory_order_relaxed);
  });
}

void CudaBackend::load_weights(const std::function<void()>& load) {
  const ContextScope here(context_);
  const auto end = [this](void*) {
    is_loading_ = false;
    weight_upload_.reset();  // also after an error: no thread reads any more
  };
  begin_upload();
  const std::unique_ptr<void, decltype(end)> at_end(this, end);
  is_loading_ = true;
  load();
  weight_upload_->finish();
}

void CudaBackend::copy_rows(std::span<const WeightUpload::Copy> copies) {
  cuda_check(cudaStreamSynchronize(where_.stream), "weights");  // copies use streams of their own
  weight_upload_->copy(copies);
  if (!is_loading_) weight_upload_->finish();
}

WeightPtr CudaBackend::pack(std::span<const WeightRows> parts, DType dtype) {
  if (dtype == DType::kF32) return pack_floats(parts, dtype);
  std::optional<QuantizedPack> quantized = pack_quantized(parts);
  if (!quantized) return pack_floats(parts, dtype);
  const ContextScope here(context_);
  begin_upload();
  auto weight = std::make_shared<DeviceWeight>();
  weight->quantized = quantized->weight;
  QuantizedWeight& to = *weight->quantized;
  weight->memory = allocate(static_cast<size_t>(to.n * to.row_bytes()));
  weight->scales = allocate(quantized->scales.size() * sizeof(uint32_t));
  to.values = weight->memory.get();
  to.scales = static_cast<const uint32_t*>(weight->scales.get());
  gemms_->reserve(to, dtype);
  std::vector<WeightUpload::Copy> copies;
  auto* place = static_cast<char*>(weight->memory.get());
  for (const WeightRows& rows : quantized->rows) {
    copies.push_back({place, rows, weight});
    place += static_cast<size_t>(rows.num_rows()) * rows.row_bytes();
  }
  copy_rows(copies);
  upload(weight->scales.get(), quantized->scales.data(),
         quantized->scales.size() * sizeof(uint32_t));
  return weight;
}

WeightPtr CudaBackend::pack_floats(std::span<const WeightRows> parts, DType dtype) {
  const ContextScope here(context_);
  begin_upload();
  auto weight = std::make_shared<DeviceWeight>();
  int64_t n = 0;
  const int64_t k = parts.front().num_columns();
  for (const WeightRows& part : parts) n += part.num_rows();
  weight->matrix = Tensor(nullptr, dtype, n, k);
  weight->memory = allocate(weight->matrix.bytes());
  weight->matrix.data = weight->memory.get();
  int64_t row = 0;
  std::vector<WeightUpload::Copy> copies;
  std::vector<std::pair<Tensor, Tensor>> conversions;  // destination, source
  std::vector<Buffer> raw_memory;
  for (const WeightRows& part : parts) {
    Tensor to = weight->matrix.rows(row, part.num_rows());
    row += part.num_rows();
    if (part.dtype() != dtype) {
      Tensor raw(nullptr, part.dtype(), part.num_rows(), k);
      raw_memory.push_back(allocate(raw.bytes()));
      raw.data = raw_memory.back().get();
      conversions.emplace_back(to, raw);
      to = raw;
    }
    copies.push_back({to.data, part, weight});
  }
  copy_rows(copies);
  if (conversions.empty()) return weight;
  weight_upload_->finish();
  for (const auto& [to, raw] : conversions) convert(where_, to, raw);
  cuda_check(cudaStreamSynchronize(where_.stream), "weights");
  return weight;
}

void CudaBackend::copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies) {
  const ContextScope here(context_);
  grow(copies_, copies.size_bytes());
  cuda_check(cudaMemcpyAsync(copies_.memory.get(), copies.data(), copies.size_bytes(),
                             cudaMemcpyHostToDevice, where_.stream),
             "copies");
  cuda::copy_blocks(where_, kv,
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
