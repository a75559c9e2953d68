#include "nanovllm/ops/cuda/gemm/gemms.h"

#include <algorithm>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/tile_cost.h"

namespace nanovllm::cuda {

namespace {

/// How many tile configurations are candidates.
constexpr size_t kTileCandidates = 3;

/// A number for each kind of weights, since choices for one kind do not suit another kind. 0 means
/// not quantized.
int kind_of(const QuantizedWeight* w) {
  return w == nullptr ? 0 : 1 + 2 * static_cast<int>(w->format) + (w->group_shift == 5 ? 1 : 0);
}

}  // namespace

Gemms::Gemms(Launch where, const CudaKernels& kernels, int device,
             const std::function<Buffer(size_t)>& allocate, std::function<void(cudaEvent_t)> wait)
    : where_(where),
      kernels_(kernels),
      is_native_(!kernels.portable),
      autotuner_(where, std::move(wait)),
      cublaslt_(where),
      allocate_(allocate) {
  norm_squares_ = allocate(size_t{kMaxNormParts} * kNormTokens * sizeof(float));
  if (!is_native_) return;
  waiting_grids_.emplace(device);
  tile_memory_ = {allocate(kTilePartBytes), allocate(kTileCounters * sizeof(uint32_t))};
}

Gemms::Call Gemms::with_weight(Call call, const Weight& w) {
  const auto& weight = static_cast<const DeviceWeight&>(w);
  call.w = weight.matrix;
  if (weight.quantized) {
    call.quantized = &*weight.quantized;
    call.w = Tensor(nullptr, call.in.x.dtype, weight.quantized->n, weight.quantized->k);
  }
  return call;
}

void Gemms::store(Tensor out, const GemmInput& x, const Weight& w, Tensor bias) {
  run(with_weight({.epilogue = Epilogue::kStore, .out = out, .in = x, .bias = bias}, w));
}

void Gemms::swiglu(Tensor out, const GemmInput& x, const Weight& w, Tensor gate_up) {
  run(with_weight({.epilogue = Epilogue::kSwiglu, .out = out, .in = x, .scratch = gate_up}, w));
}

void Gemms::add(Tensor out, const GemmInput& x, const Weight& w, Tensor scratch) {
  run(with_weight({.epilogue = Epilogue::kAdd, .out = out, .in = x, .scratch = scratch}, w));
}

bool Gemms::send(const Peers& peers, Tensor out, const GemmInput& x, const Weight& w,
                 Tensor scratch, bool adds) {
  Call call = with_weight({.epilogue = adds ? Epilogue::kAdd : Epilogue::kStore,
                           .out = out,
                           .in = x,
                           .scratch = scratch},
                          w);
  const bool sends = prefers_small(call, args_of(call));
  if (sends) call.peers = &peers;
  run(call);
  return sends;
}

void Gemms::add(Residual& residual, const GemmInput& x, const Weight& w, const Norm& next) {
  residual.begun_norm.reset();
  run(with_weight({.epilogue = Epilogue::kAdd,
                   .out = residual.whole(),
                   .in = x,
                   .scratch = residual.scratch(),
                   .residual = &residual,
                   .next = next},
                  w));
}

void Gemms::store_rotated(const GemmInput& x, const Weight& w, Tensor bias,
                          const RopeStoreArgs& rope, const KvCache& kv, const Step& step) {
  const Call call =
      with_weight({.epilogue = Epilogue::kStore, .out = rope.qkv, .in = x, .bias = bias}, w);
  GemmArgs args = args_of(call);
  const RopeParams params(rope, kv, step);
  args.rope = &params;
  if (prefers_swap_ab(call, args)) return run_swap_ab(call, args);
  run(call);
  rope_and_store(where_, rope, kv, step);
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
          .float_out = call.out.dtype == DType::kF32 && call.in.x.dtype != DType::kF32,
          .quantized = call.quantized,
          .peers = call.peers};
}

namespace {

DeferredNorm deferred(const Residual::BegunNorm& begun, const Tensor& x) {
  return {.weight = begun.weight.as<const float>(),
          .x = x.data,
          .squares = begun.squares.as<float>(),
          .num_parts = static_cast<int>(begun.squares.shape[0])};
}

}  // namespace

DeferredNorm Gemms::apply_norm(const Call& call, NormKernel kernel, GemmArgs& args) {
  const bool is_small = kernel == NormKernel::kQuantizedSmall;
  const bool may_begin = is_small ? call.in.x.dtype == DType::kBF16 : kernel == NormKernel::kSwapAb;
  const int num_parts = !may_begin || !call.next.weight ? 0
                        : is_small ? num_quantized_norm_parts(where_, args, call.in.x.dtype)
                                   : num_norm_parts(where_, args);
  if (num_parts > 0 && num_parts <= kMaxNormParts) {
    const Tensor squares(norm_squares_.get(), DType::kF32, num_parts, kNormTokens);
    call.residual->begun_norm = {call.next.weight, squares};
    return deferred(*call.residual->begun_norm, call.scratch);
  }
  if (!call.in.norm.weight) return {};
  const Tensor normed = call.in.residual->scratch();
  args.x = normed.data;
  args.norm = nullptr;
  // A begun norm is used once, because the scratch that holds its x may be overwritten afterwards.
  const auto begun = std::exchange(call.in.residual->begun_norm, std::nullopt);
  const bool finishes = is_small || kernel == NormKernel::kSwapAb ||
                        (kernel == NormKernel::kTile && args.num_tokens <= kNormTokens);
  if (finishes && begun && begun->weight.data == call.in.norm.weight.data)
    return deferred(*begun, normed);
  cuda::rms_norm(where_, normed, call.in.x, call.in.norm);
  return {};
}

Launch Gemms::launch_of(const Call& call) const {
  Launch where = where_;
  if (call.w_is_new) where.overlaps = false;  // kernels read w before the previous one has ended
  return where;
}

void Gemms::run_as(GemmChoice& choice, const Call& call, Tensor out) {
  if (choice.kernel == GemmChoice::kDequantized) return run_dequantized(call, out);
  GemmArgs args = args_of(call);
  args.out = out.data;
  if (choice.kernel == GemmChoice::kSwapAb) return run_swap_ab(call, args);
  const bool is_tile = choice.kernel != GemmChoice::kCublasLt;
  const DeferredNorm norm =
      apply_norm(call, is_tile ? NormKernel::kTile : NormKernel::kCublasLt, args);
  const Launch where = launch_of(call);
  if (is_tile) return tile_gemm(where, args, choice.kernel, tile_scratch(), norm);
  const Tensor x = call.in.norm.weight ? call.in.residual->scratch() : call.in.x;
  if (call.epilogue == Epilogue::kSwiglu) {
    run({.epilogue = Epilogue::kStore,
         .out = call.scratch,
         .in = x,
         .w = call.w,
         .w_is_new = call.w_is_new});
    return cuda::silu_mul(where_, out, call.scratch);
  }
  cublaslt_.run(choice, out, x, call.w, call.epilogue == Epilogue::kAdd);
  if (call.bias) cuda::add(where_, out, call.bias);
}

bool Gemms::may_use(int config, const GemmArgs& args, DType dtype) const {
  return is_native_ && config < kNumTileConfigs &&
         supports_tile_gemm(args, dtype, max_tile_blocks(where_), tile_config(config)) &&
         (tile_config(config).split == 1 || may_split_k());
}

std::vector<std::pair<double, int>> Gemms::best_tiles(const GemmArgs& args, DType dtype) const {
  std::vector<std::pair<double, int>> tiles;
  for (int i = 0; i < kNumTileConfigs; ++i)
    if (may_use(i, args, dtype))
      tiles.emplace_back(tile_cost(args, tile_config(i), where_.num_sms), i);
  std::ranges::sort(tiles);
  tiles.resize(std::min(tiles.size(), kTileCandidates));
  return tiles;
}

std::vector<GemmChoice> Gemms::candidates(const Call& call) {
  if (call.quantized != nullptr) return quantized_candidates(call);
  const auto tiles = best_tiles(args_of(call), call.in.x.dtype);
  // tile_gemm() is faster than cuBLASLt and a separate SwiGLU. For a GEMM alone cuBLASLt is mostly
  // the faster one.
  std::vector<GemmChoice> all;
  if (call.epilogue != Epilogue::kSwiglu) all = cublaslt_.candidates(call.out, call.in.x, call.w);
  else if (tiles.empty()) all.emplace_back();
  for (const auto& [cost, config] : tiles) all.push_back({.kernel = config});
  return all;
}

bool Gemms::prefers_swap_ab(const Call& call, const GemmArgs& args) const {
  const DType dtype = call.in.x.dtype;
  return is_native_ && kernels_.gemm < 0 && call.out.dtype == dtype &&
         prefers_swap_ab_gemm(where_, args, dtype);
}

bool Gemms::prefers_small(const Call& call, const GemmArgs& args) const {
  const DType dtype = call.in.x.dtype;
  if (prefers_swap_ab(call, args)) return false;
  return call.quantized != nullptr ? supports_quantized_small(where_, args, dtype)
                                   : call.out.dtype == dtype && prefers_small_gemm(args, dtype);
}

void Gemms::run(const Call& call) {
  if (call.quantized != nullptr && run_quantized(call)) return;
  const GemmArgs args = args_of(call);
  const DType dtype = call.in.x.dtype;
  // Rules decide before autotuning does: part of the gain of these two kernels is that they overlap
  // with their neighbours in a step, which a measurement of a kernel alone does not show.
  const int forced = kernels_.gemm;
  GemmChoice choice;
  if (prefers_swap_ab(call, args)) {
    choice.kernel = GemmChoice::kSwapAb;
  } else if (call.quantized == nullptr && prefers_small(call, args)) {
    return small_gemm(launch_of(call), args, dtype);
  } else if (is_native_ && forced >= 0 && dtype == DType::kBF16) {
    check(supports_tile_gemm(args, dtype, max_tile_blocks(where_), tile_config(forced)),
          "tile configuration {} does not support this GEMM", forced);
    choice.kernel = forced;
  }
  if (choice.kernel != GemmChoice::kCublasLt) return run_as(choice, call, call.out);
  constexpr int kOperations = 6;
  const int operation = 2 * static_cast<int>(call.epilogue) + (call.in.norm.weight ? 1 : 0) +
                        kOperations * kind_of(call.quantized);
  const Tensor measured = call.epilogue == Epilogue::kAdd ? call.scratch : call.out;
  const GemmChoices::Key key = GemmChoices::key(operation, call.out, call.in.x, call.w);
  const GemmChoice known = choice = autotuner_.choose(
      key, args.num_tokens, [&] { return candidates(call); },
      [&](GemmChoice& candidate) { run_as(candidate, call, measured); });
  // Choices of an earlier process or of another T may not suit here. Another one is found once,
  // because that takes longer than launching the GEMM.
  const bool suits = choice.kernel >= 0 ? may_use(choice.kernel, args, dtype)
                                        : (choice.kernel == GemmChoice::kDequantized) ==
                                              (call.quantized != nullptr);
  if (!suits) choice = candidates(call).front();
  run_as(choice, call, call.out);
  if (choice != known) autotuner_.choices().set(key, {choice});
}

}  // namespace nanovllm::cuda
