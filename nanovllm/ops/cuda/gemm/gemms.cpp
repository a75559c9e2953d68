#include "nanovllm/ops/cuda/gemm/gemms.h"

#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"

namespace nanovllm::cuda {

namespace {

/// Whether a tile configuration is worth measuring: the same for all T of a bucket
/// (shape_bucket.h).
bool may_win(const TileConfig& config, int num_tokens, int n, int num_sms) {
  // Prefer the tile that wastes the fewest padding rows.
  const int large = num_tokens <= 192 || (num_tokens > 256 && num_tokens <= 384) ? 192 : 256;
  const bool suits = num_tokens <= 64    ? config.tokens == 64
                     : num_tokens <= 128 ? config.tokens <= 128
                                         : config.tokens == 128 || config.tokens == large;
  if (num_tokens > 1024)
    return config.tokens == 256 && config.rows == (config.swiglu ? 192 : 128) && config.split == 1;
  if (config.swiglu) return suits && (num_tokens <= 256 || config.tokens == large);
  return suits && 3 * config.blocks(num_tokens, n) > num_sms;
}

}  // namespace

Gemms::Gemms(Launch where, const CudaKernels& kernels, int device,
             const std::function<Buffer(size_t)>& allocate, std::function<void(cudaEvent_t)> wait)
    : where_(where),
      kernels_(kernels),
      is_native_(!kernels.portable),
      autotuner_(where, std::move(wait)),
      cublaslt_(where, autotuner_) {
  if (!is_native_) return;
  waiting_grids_.emplace(device);
  tile_memory_ = {allocate(kTilePartBytes), allocate(kTileCounters * sizeof(uint32_t))};
  norm_squares_ = allocate(size_t{kMaxNormParts} * kSwapAbTokens * sizeof(float));
}

void Gemms::store(Tensor out, Tensor x, const Weight& w, Tensor bias) {
  run({.epilogue = Epilogue::kStore, .out = out, .x = x, .w = matrix_of(w), .bias = bias});
}

void Gemms::add(Tensor out, Tensor x, const Weight& w, Tensor scratch) {
  run({.epilogue = Epilogue::kAdd, .out = out, .x = x, .w = matrix_of(w), .scratch = scratch});
}

void Gemms::add(Residual& residual, Tensor x, const Weight& w, const Norm& next) {
  residual.begun_norm = 0;
  run({.epilogue = Epilogue::kAdd,
       .out = residual.whole(),
       .x = x,
       .w = matrix_of(w),
       .scratch = residual.scratch(),
       .residual = &residual,
       .next = next});
}

void Gemms::swiglu(Tensor out, Tensor x, const Weight& w, Tensor gate_up) {
  run({.epilogue = Epilogue::kSwiglu, .out = out, .x = x, .w = matrix_of(w), .scratch = gate_up});
}

void Gemms::norm_store(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                       Tensor bias) {
  run({.epilogue = Epilogue::kStore,
       .out = out,
       .x = residual.whole(),
       .w = matrix_of(w),
       .bias = bias,
       .residual = &residual,
       .norm = norm});
}

void Gemms::norm_swiglu(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                        Tensor gate_up) {
  run({.epilogue = Epilogue::kSwiglu,
       .out = out,
       .x = residual.whole(),
       .w = matrix_of(w),
       .scratch = gate_up,
       .residual = &residual,
       .norm = norm});
}

bool Gemms::norm_rope(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                      const KvCache& kv, const Batch& batch) {
  const bool is_free = kernels_.gemm < 0 || kernels_.gemm == CudaKernels::kSwapAb;
  const Call call = {.epilogue = Epilogue::kStore,
                     .out = rope.qkv,
                     .x = residual.whole(),
                     .w = matrix_of(qkv.w),
                     .bias = qkv.bias,
                     .residual = &residual,
                     .norm = qkv.norm};
  GemmArgs args = args_of(call);
  const RopeParams params(rope, kv, batch);
  if (!is_native_ || !is_free || !is_roped_gemm(where_, args, call.x.dtype, params)) return false;
  const DeferredNorm norm = take_norm(call, true, args);
  roped_gemm(where_, args, norm, params);
  return true;
}

GemmArgs Gemms::args_of(const Call& call) {
  return {.out = call.out.data,
          .x = call.x.data,
          .w = call.w.data,
          .norm = call.norm.weight.as<const float>(),
          .bias = call.bias.as<const float>(),
          .eps = call.norm.eps,
          .num_tokens = static_cast<int>(call.x.shape[0]),
          .n = static_cast<int>(call.out.shape[1]),
          .k = static_cast<int>(call.x.shape[1]),
          .epilogue = call.epilogue,
          .float_out = call.out.dtype == DType::kF32 && call.x.dtype != DType::kF32};
}

bool Gemms::is_capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(where_.stream, &status), "GEMM");
  return status != cudaStreamCaptureStatusNone;
}

DeferredNorm Gemms::take_norm(const Call& call, bool is_swap_ab, GemmArgs& args) {
  if (is_swap_ab && call.next.weight) {
    begun_ = {.weight = call.next.weight.as<const float>(),
              .x = call.scratch.data,
              .squares = static_cast<float*>(norm_squares_.get()),
              .num_parts = num_norm_parts(where_, args)};
    call.residual->begun_norm = ++num_begun_;
    return begun_;
  }
  if (!call.norm.weight) return {};
  const Tensor normed = call.residual->scratch();
  args.x = normed.data;
  args.norm = nullptr;
  // Once: whoever comes next may find something else in the scratch.
  const uint64_t begun = std::exchange(call.residual->begun_norm, 0);
  if (is_swap_ab && begun != 0 && begun == num_begun_ && begun_.weight == call.norm.weight.data)
    return begun_;
  cuda::rms_norm(where_, normed, call.x, call.norm);
  return {};
}

void Gemms::run_cublaslt(const Call& call, Tensor out, Tensor x) {
  switch (call.epilogue) {
    case Epilogue::kStore:
      cublaslt_.run(out, x, call.w, is_capturing());
      if (call.bias) cuda::add(where_, out, call.bias);
      return;
    case Epilogue::kAdd:
      return cublaslt_.run(out, x, call.w, is_capturing(), call.scratch);
    case Epilogue::kSwiglu:
      run({.epilogue = Epilogue::kStore, .out = call.scratch, .x = x, .w = call.w});
      return cuda::silu_mul(where_, out, call.scratch);
  }
}

void Gemms::run(const Call& call) {
  const GemmArgs args = args_of(call);
  const DType dtype = call.x.dtype;
  const bool same = call.out.dtype == dtype;
  if (same && is_small_gemm(args, dtype)) return small_gemm(where_, args, dtype);

  constexpr int kCublasLt = -1;
  const auto run_as = [&](int kernel, Tensor out) {
    GemmArgs now = args;
    now.out = out.data;
    const DeferredNorm norm = take_norm(call, kernel == CudaKernels::kSwapAb, now);
    if (kernel == CudaKernels::kSwapAb) return swap_ab_gemm(where_, now, norm);
    if (kernel == kCublasLt)
      return run_cublaslt(call, out, call.norm.weight ? call.residual->scratch() : call.x);
    tile_gemm(where_, now, kernel,
              {tile_memory_[0].get(), static_cast<uint32_t*>(tile_memory_[1].get())});
  };
  if (!is_native_ || dtype != DType::kBF16) return run_as(kCublasLt, call.out);
  const int most = max_tile_blocks(where_), forced = kernels_.gemm;
  const auto serves = [&](int config) { return can_tile(args, dtype, most, tile_config(config)); };
  if (forced >= 0 && forced != CudaKernels::kSwapAb) {
    check(serves(forced), "tile configuration {} of a GEMM that it does not serve", forced);
    return run_as(forced, call.out);
  }
  // By a rule: what it hides of its neighbours' waits in a step is worth more than measuring it
  // alone shows.
  if (same && is_swap_ab_gemm(where_, args, dtype)) return run_as(CudaKernels::kSwapAb, call.out);
  if (forced == CudaKernels::kSwapAb) return run_as(kCublasLt, call.out);

  std::vector<int> candidates = {kCublasLt};
  for (int config = 0; config < kNumTileConfigs; ++config)
    if (serves(config) && (waiting_grids_->allowed() || tile_config(config).split == 1) &&
        may_win(tile_config(config), args.num_tokens, args.n, where_.num_sms))
      candidates.push_back(config);
  size_t best = 0;
  if (candidates.size() > 1) {
    const int operation = 2 * static_cast<int>(call.epilogue) + (call.norm.weight ? 1 : 0);
    best = static_cast<size_t>(
        autotuner_.choose(operation, call.out, call.x, call.w, static_cast<int>(candidates.size()),
                          is_capturing(), [&](int i) {
                            run_as(candidates[static_cast<size_t>(i)],
                                   call.epilogue == Epilogue::kAdd ? call.scratch : call.out);
                          }));
  }
  run_as(candidates[best], call.out);
}

}  // namespace nanovllm::cuda
