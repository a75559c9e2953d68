#include "nanovllm/ops/cuda/gemm/gemms.h"

#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"

namespace nanovllm::cuda {

namespace {

/// Whether a tile configuration is worth measuring. The answer is the same for all T of a bucket
/// (shape_bucket.h).
bool may_win(const TileConfig& config, int num_tokens, int n, int num_sms) {
  // The tile that has the fewest rows of padding.
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

void Gemms::store(Tensor out, const GemmInput& x, const Weight& w, Tensor bias) {
  run({.epilogue = Epilogue::kStore, .out = out, .in = x, .w = matrix_of(w), .bias = bias});
}

void Gemms::swiglu(Tensor out, const GemmInput& x, const Weight& w, Tensor gate_up) {
  run({.epilogue = Epilogue::kSwiglu, .out = out, .in = x, .w = matrix_of(w), .scratch = gate_up});
}

void Gemms::add(Tensor out, Tensor x, const Weight& w, Tensor scratch) {
  run({.epilogue = Epilogue::kAdd, .out = out, .in = x, .w = matrix_of(w), .scratch = scratch});
}

void Gemms::add(Residual& residual, Tensor x, const Weight& w, const Norm& next) {
  residual.begun_norm = 0;
  run({.epilogue = Epilogue::kAdd,
       .out = residual.whole(),
       .in = x,
       .w = matrix_of(w),
       .scratch = residual.scratch(),
       .residual = &residual,
       .next = next});
}

bool Gemms::norm_rope(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                      const KvCache& kv, const Batch& batch) {
  const bool may_swap_ab = kernels_.gemm < 0 || kernels_.gemm == CudaKernels::kSwapAb;
  const Call call = {.epilogue = Epilogue::kStore,
                     .out = rope.qkv,
                     .in = {residual, qkv.norm},
                     .w = matrix_of(qkv.w),
                     .bias = qkv.bias};
  GemmArgs args = args_of(call);
  const RopeParams params(rope, kv, batch);
  if (!is_native_ || !may_swap_ab || !prefers_swap_ab_gemm(where_, args, call.in.x.dtype, &params))
    return false;
  const DeferredNorm norm = apply_norm(call, /*is_swap_ab=*/true, args);
  swap_ab_gemm(where_, args, norm, &params);
  return true;
}

GemmArgs Gemms::args_of(const Call& call) {
  return {.out = call.out.data,
          .x = call.in.x.data,
          .w = call.w.data,
          .norm = call.in.norm.weight.as<const float>(),
          .bias = call.bias.as<const float>(),
          .eps = call.in.norm.eps,
          .num_tokens = static_cast<int>(call.in.x.shape[0]),
          .n = static_cast<int>(call.out.shape[1]),
          .k = static_cast<int>(call.in.x.shape[1]),
          .epilogue = call.epilogue,
          .float_out = call.out.dtype == DType::kF32 && call.in.x.dtype != DType::kF32};
}

DeferredNorm Gemms::apply_norm(const Call& call, bool is_swap_ab, GemmArgs& args) {
  if (is_swap_ab && call.next.weight) {
    begun_ = {.weight = call.next.weight.as<const float>(),
              .x = call.scratch.data,
              .squares = static_cast<float*>(norm_squares_.get()),
              .num_parts = num_norm_parts(where_, args)};
    call.residual->begun_norm = ++num_begun_;
    return begun_;
  }
  if (!call.in.norm.weight) return {};
  const Tensor normed = call.in.residual->scratch();
  args.x = normed.data;
  args.norm = nullptr;
  // A begun norm is used once, because the scratch that holds its x may be overwritten afterwards.
  const uint64_t begun = std::exchange(call.in.residual->begun_norm, 0);
  if (is_swap_ab && begun != 0 && begun == num_begun_ && begun_.weight == call.in.norm.weight.data)
    return begun_;
  cuda::rms_norm(where_, normed, call.in.x, call.in.norm);
  return {};
}

void Gemms::run_cublaslt(const Call& call, Tensor out, Tensor x) {
  switch (call.epilogue) {
    case Epilogue::kStore:
      cublaslt_.run(out, x, call.w);
      if (call.bias) cuda::add(where_, out, call.bias);
      return;
    case Epilogue::kAdd:
      return cublaslt_.run(out, x, call.w, call.scratch);
    case Epilogue::kSwiglu:
      run({.epilogue = Epilogue::kStore, .out = call.scratch, .in = x, .w = call.w});
      return cuda::silu_mul(where_, out, call.scratch);
  }
}

void Gemms::run(const Call& call) {
  const GemmArgs args = args_of(call);
  const DType dtype = call.in.x.dtype;
  const bool same = call.out.dtype == dtype;
  if (same && prefers_small_gemm(args, dtype)) return small_gemm(where_, args, dtype);

  constexpr int kCublasLt = -1;
  const auto run_as = [&](int kernel, Tensor out) {
    GemmArgs now = args;
    now.out = out.data;
    const DeferredNorm norm = apply_norm(call, kernel == CudaKernels::kSwapAb, now);
    if (kernel == CudaKernels::kSwapAb) return swap_ab_gemm(where_, now, norm);
    if (kernel == kCublasLt)
      return run_cublaslt(call, out, call.in.norm.weight ? call.in.residual->scratch() : call.in.x);
    tile_gemm(where_, now, kernel,
              {tile_memory_[0].get(), static_cast<uint32_t*>(tile_memory_[1].get())});
  };
  if (!is_native_ || dtype != DType::kBF16) return run_as(kCublasLt, call.out);
  const int most = max_tile_blocks(where_), forced = kernels_.gemm;
  const auto supports = [&](int config) {
    return supports_tile_gemm(args, dtype, most, tile_config(config));
  };
  if (forced >= 0 && forced != CudaKernels::kSwapAb) {
    check(supports(forced), "tile configuration {} does not support this GEMM", forced);
    return run_as(forced, call.out);
  }
  // A rule decides instead of autotuning: part of this kernel's gain is that it overlaps with its
  // neighbours in a step, which a measurement of the kernel alone does not show.
  if (same && prefers_swap_ab_gemm(where_, args, dtype))
    return run_as(CudaKernels::kSwapAb, call.out);
  if (forced == CudaKernels::kSwapAb) return run_as(kCublasLt, call.out);

  std::vector<int> candidates = {kCublasLt};
  for (int config = 0; config < kNumTileConfigs; ++config)
    if (supports(config) && (waiting_grids_->allowed() || tile_config(config).split == 1) &&
        may_win(tile_config(config), args.num_tokens, args.n, where_.num_sms))
      candidates.push_back(config);
  if (candidates.size() == 1) return run_as(kCublasLt, call.out);
  const auto candidate = [&](int i) { return candidates[static_cast<size_t>(i)]; };
  const Tensor measured = call.epilogue == Epilogue::kAdd ? call.scratch : call.out;
  const int operation = 2 * static_cast<int>(call.epilogue) + (call.in.norm.weight ? 1 : 0);
  const int best =
      autotuner_.choose(operation, call.out, call.in.x, call.w, static_cast<int>(candidates.size()),
                        [&](int i) { run_as(candidate(i), measured); });
  run_as(candidate(best), call.out);
}

}  // namespace nanovllm::cuda
