#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/backend/cuda_backend.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/swap_ab_gemm.h"

// How CudaBackend chooses among the ways to compute a product.
namespace nanovllm::cuda {

namespace {

/// Whether a cut is worth measuring; the same for all T that share a choice (shape_bucket.h).
bool may_win(const TileConfig& cut, int num_tokens, int n, int num_sms) {
  // With as few tokens as can be that are not there.
  const int large = num_tokens <= 192 || (num_tokens > 256 && num_tokens <= 384) ? 192 : 256;
  const bool suits = num_tokens <= 64    ? cut.tokens == 64
                     : num_tokens <= 128 ? cut.tokens <= 128
                                         : cut.tokens == 128 || cut.tokens == large;
  if (num_tokens > 1024)
    return cut.tokens == 256 && cut.rows == (cut.swiglu ? 192 : 128) && cut.split == 1;
  if (cut.swiglu) return suits && (num_tokens <= 256 || cut.tokens == large);
  return suits && 3 * cut.blocks(num_tokens, n) > num_sms;
}

}  // namespace

void CudaBackend::separately(const Product& p, Tensor out, Tensor x) {
  const DeviceWeight& w = device_weight(p.w);
  switch (p.epilogue) {
    case Epilogue::kStore:
      cublaslt_->run(out, x, w, capturing_);
      if (p.bias) add_bias(where_, out, p.bias);
      return;
    case Epilogue::kAdd:
      return cublaslt_->run(out, x, w, capturing_, p.scratch);
    case Epilogue::kSwiglu:
      product({.epilogue = Epilogue::kStore, .out = p.scratch, .x = x, .w = p.w});
      return silu_mul(out, p.scratch);
  }
}

GemmArgs CudaBackend::small_args(const Product& p) {
  return {.out = p.out.data,
          .x = p.x.data,
          .w = device_weight(p.w).matrix.data,
          .norm = p.norm.weight.as<const float>(),
          .bias = p.bias.as<const float>(),
          .eps = p.norm.eps,
          .num_tokens = static_cast<int>(p.x.shape[0]),
          .n = static_cast<int>(p.out.shape[1]),
          .k = static_cast<int>(p.x.shape[1]),
          .epilogue = p.epilogue,
          .float_out = p.out.dtype == DType::kF32 && p.x.dtype != DType::kF32};
}

NormAhead CudaBackend::take_norm(const Product& p, bool is_mid, GemmArgs& args) {
  if (is_mid && p.next_norm) {
    ahead_ = {p.next_norm.as<const float>(), p.scratch.data,
              static_cast<float*>(norm_squares_.get()), num_norm_parts(args)};
    ahead_of_ = p.out;
    return ahead_;
  }
  if (!p.norm.weight) return {};
  args.x = p.hidden.data;
  args.norm = nullptr;
  const Tensor of = std::exchange(ahead_of_, {});  // the next one may find something else there
  if (is_mid && p.x.data == of.data && p.x.shape == of.shape && p.hidden.data == ahead_.x &&
      p.norm.weight.data == ahead_.weight)
    return ahead_;
  cuda::rms_norm(where_, p.hidden, p.x, p.norm);
  return {};
}

void CudaBackend::product(const Product& p) {
  const Tensor &x = p.x, &w = device_weight(p.w).matrix;
  const GemmArgs args = small_args(p);
  const bool same = p.out.dtype == x.dtype;
  if (same && is_small_gemm(args.num_tokens, args.n, args.k, args.epilogue, x.dtype))
    return small_gemm(where_, args, x.dtype);

  constexpr int kSeparately = -1;
  const auto run = [&](int way, Tensor out) {
    GemmArgs now = args;
    now.out = out.data;
    const NormAhead ahead = take_norm(p, way == CudaKernels::kSwapAb, now);
    if (way == CudaKernels::kSwapAb) return swap_ab_gemm(where_, now, ahead);
    if (way == kSeparately) return separately(p, out, p.norm.weight ? p.hidden : x);
    tile_gemm(where_, now, way,
              {tile_memory_[0].get(), static_cast<uint32_t*>(tile_memory_[1].get())});
  };
  if (portable_ || x.dtype != DType::kBF16) return run(kSeparately, p.out);
  const int most = max_tile_blocks(where_), forced = kernels_.product;
  const auto serves = [&](int cut) { return can_tile(args, x.dtype, most, tile_config(cut)); };
  if (forced >= 0 && forced != CudaKernels::kSwapAb) {
    check(serves(forced), "cut {} of a product that it does not serve", forced);
    return run(forced, p.out);
  }
  // What it hides of its neighbours' waits in a step is worth more than what measuring shows.
  if (same && is_swap_ab_gemm(args, x.dtype)) return run(CudaKernels::kSwapAb, p.out);
  if (forced == CudaKernels::kSwapAb) return run(kSeparately, p.out);

  std::vector<int> ways = {kSeparately};
  for (int cut = 0; cut < kNumTileConfigs; ++cut)
    if (serves(cut) && (waiting_grids_->allowed() || tile_config(cut).split == 1) &&
        may_win(tile_config(cut), args.num_tokens, args.n, where_.num_sms))
      ways.push_back(cut);
  size_t best = 0;
  if (ways.size() > 1) {
    const int choice = 2 * static_cast<int>(p.epilogue) + (p.norm.weight ? 1 : 0);
    const auto measured = [&](int i) {
      run(ways[static_cast<size_t>(i)], p.epilogue == Epilogue::kAdd ? p.scratch : p.out);
    };
    best = static_cast<size_t>(cublaslt_->fastest(
        choice, p.out, x, w, static_cast<int>(ways.size()), capturing_, measured));
  }
  run(ways[best], p.out);
}

void CudaBackend::matmul(Tensor out, Tensor x, const Weight& w, Tensor bias) {
  const ContextScope here(context_);
  product({.epilogue = Epilogue::kStore, .out = out, .x = x, .w = w, .bias = bias});
}

void CudaBackend::add_matmul(Tensor residual, Tensor x, const Weight& w, Tensor delta,
                             Tensor next_norm) {
  const ContextScope here(context_);
  ahead_of_ = {};
  if (collectives_ && collectives_->adds_late(residual)) {
    matmul(delta, x, w, {});
    pending_part_ = delta;
  } else if (collectives_ && collectives_->shares_rows(residual)) {
    const Range own = row_share(residual.shape[0], collectives_->ranks().rank());
    const auto run = [&](int64_t first, int64_t count, bool adds) {
      if (count == 0) return;
      cublaslt_->run(residual.rows(first, count), x.rows(first, count), device_weight(w),
                     capturing_, adds ? delta.rows(first, count) : Tensor());
    };
    const int64_t end = own.first + own.count;
    run(0, own.first, false);
    run(own.first, own.count, true);
    run(end, residual.shape[0] - end, false);
  } else if (collectives_ && collectives_->ranks().rank().index != 0)
    matmul(residual, x, w, {});  // rank 0 adds the old one
  else
    product({.epilogue = Epilogue::kAdd,
             .out = residual,
             .x = x,
             .w = w,
             .next_norm = next_norm,
             .scratch = delta});
  if (collectives_) pending_ = residual;
}

void CudaBackend::norm_matmul(Tensor out, Tensor x, const Norm& norm, const Weight& w, Tensor bias,
                              Tensor hidden) {
  const ContextScope here(context_);
  if (sum_norm(hidden, x, norm)) return matmul(out, hidden, w, bias);
  product({.epilogue = Epilogue::kStore,
           .out = out,
           .x = x,
           .w = w,
           .norm = norm,
           .bias = bias,
           .hidden = hidden});
}

void CudaBackend::qkv_attention(const QkvArgs& qkv, const RopeStoreArgs& rope,
                                const AttentionArgs& args, const KvCache& kv, const Batch& batch) {
  const ContextScope here(context_);
  const Product product = {.epilogue = Epilogue::kStore,
                           .out = rope.qkv,
                           .x = qkv.x,
                           .w = qkv.w,
                           .norm = qkv.norm,
                           .bias = qkv.bias,
                           .hidden = qkv.hidden};
  GemmArgs product_args = small_args(product);
  const RopeParams params(rope, kv, batch);
  const bool is_free = kernels_.product < 0 || kernels_.product == CudaKernels::kSwapAb;
  check(rope.qkv.shape[1] == (rope.num_heads + 2 * kv.num_kv_heads) * kv.head_dim &&
            qkv.x.shape[0] == batch.num_tokens() && rope.cos.shape[1] == kv.head_dim / 2 &&
            kv.dtype == qkv.x.dtype && rope.qkv.dtype == qkv.x.dtype,
        "qkv_attention: wrong shapes");
  if (portable_ || collectives_ || decode_cluster_ > 0 || !is_free ||
      !is_roped_gemm(product_args, qkv.x.dtype, params))
    return Backend::qkv_attention(qkv, rope, args, kv, batch);
  const NormAhead ahead = take_norm(product, true, product_args);
  roped_gemm(where_, product_args, ahead, params);
  attention(args, kv, batch);
}

void CudaBackend::norm_swiglu(Tensor out, Tensor x, const Norm& norm, const Weight& w,
                              Tensor hidden, Tensor gate_up) {
  const ContextScope here(context_);
  // All ranks do this alike; what follows is each one's own choice.
  const bool is_normed = sum_norm(hidden, x, norm);
  product({.epilogue = Epilogue::kSwiglu,
           .out = out,
           .x = is_normed ? hidden : x,
           .w = w,
           .norm = is_normed ? Norm() : norm,
           .hidden = hidden,
           .scratch = gate_up});
}

}  // namespace nanovllm::cuda
