#include <bit>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/gemms.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"
#include "nanovllm/ops/cuda/gemm/tile_cost.h"
#include "nanovllm/ops/graph_sizes.h"

// GEMMs with quantized weights: the choice among the ways that quantized/quantized_gemm.h lists.
namespace nanovllm::cuda {

void Gemms::reserve(const QuantizedWeight& w, DType dtype) {
  if (w.quantizes_activations && is_native_ && dtype == DType::kBF16)
    e4m3_activations(w, kMostGraphRows, kMostGraphRows);
  const size_t bytes = static_cast<size_t>(w.n) * static_cast<size_t>(w.k) * dtype_size(dtype);
  if (bytes <= dequantized_bytes_) return;
  dequantized_.reset();
  dequantized_ = allocate_(bytes);
  dequantized_bytes_ = bytes;
}

Tensor Gemms::dequantized(const QuantizedWeight& w, DType dtype) {
  const Tensor out(dequantized_.get(), dtype, w.n, w.k);
  check(out.bytes() <= dequantized_bytes_, "a quantized weight that was not packed here");
  dequantize(where_, out, w);
  return out;
}

Tensor Gemms::matrix_of(const Weight& w, DType dtype) {
  const auto& weight = static_cast<const DeviceWeight&>(w);
  return weight.quantized ? dequantized(*weight.quantized, dtype) : weight.matrix;
}

bool Gemms::run_quantized(const Call& call) {
  const GemmArgs args = args_of(call);
  const DType dtype = call.in.x.dtype;
  if (prefers_small(call, args)) {
    run_quantized_small(call);
    return true;
  }
  const int most_swap_ab = has_e4m3_tiles(call) ? kE4M3SwapAbTokens : kSwapAbTokens;
  if (is_native_ && args.num_tokens > most_swap_ab && call.quantized->quantizes_activations &&
      run_e4m3(call))
    return true;
  for (int config = 0; config < kNumTileConfigs; ++config)
    if (may_use(config, args, dtype)) return false;
  run_dequantized(call, call.out);
  return true;
}

void Gemms::run_dequantized(Call call, Tensor out) {
  call.out = out;
  call.w = dequantized(*call.quantized, call.in.x.dtype);
  call.w_is_new = true;
  call.quantized = nullptr;
  run(call);
}

std::vector<GemmChoice> Gemms::quantized_candidates(const Call& call) {
  GemmArgs args = args_of(call);
  const DType dtype = call.in.x.dtype;
  const auto tiles = best_tiles(args, dtype);
  std::vector<GemmChoice> all;
  all.reserve(tiles.size() + 1);
  for (const auto& [cost, config] : tiles) all.push_back({.kernel = config});
  // With few tokens reading w takes all of the time, so writing it too is never faster.
  if (args.num_tokens <= kSwapAbTokens && !all.empty()) return all;
  const double dequantizing = dequantize_cost(*args.quantized);
  args.quantized = nullptr;
  const auto plain = best_tiles(args, dtype);
  const bool is_best =
      tiles.empty() || plain.empty() || dequantizing + plain.front().first < tiles.front().first;
  all.insert(is_best ? all.begin() : all.end(), {.kernel = GemmChoice::kDequantized});
  return all;
}

void Gemms::run_quantized_small(const Call& call) {
  GemmArgs args = args_of(call);
  args.w = call.quantized->values;
  const DType dtype = call.in.x.dtype;
  const DeferredNorm norm = apply_norm(call, NormKernel::kQuantizedSmall, args);
  quantized_small_gemm(where_, args, dtype, norm);
}

void Gemms::run_swap_ab(const Call& call, GemmArgs args) {
  const QuantizedWeight* const w = call.quantized;
  if (w == nullptr || !w->quantizes_activations || args.k > kMaxQuantizedColumns) {
    const DeferredNorm norm = apply_norm(call, NormKernel::kSwapAb, args);
    return swap_ab_gemm(launch_of(call), args, norm);
  }
  const QuantizedActivations x =
      e4m3_activations(*w, args.num_tokens, (args.num_tokens + 3) / 4 * 4);
  if (call.in.residual != nullptr) call.in.residual->begun_norm.reset();
  quantize(x, call.in);
  args.norm = nullptr;
  args.has_e4m3_x = true;
  args.quantized_x = &x;
  swap_ab_gemm(where_, args, {});
}

QuantizedActivations Gemms::e4m3_activations(const QuantizedWeight& w, int64_t num_tokens,
                                             int64_t scale_stride) {
  const bool has_chunks = w.group_shift != kWholeShift;
  const int64_t num_scales = scale_stride * (has_chunks ? w.padded_columns() / kQuantizedChunk : 1);
  const auto memory = [&](Growing& growing, int64_t bytes) {
    if (static_cast<size_t>(bytes) > growing.bytes) {
      growing.bytes = std::bit_ceil(static_cast<size_t>(bytes));
      growing.all.push_back(allocate_(growing.bytes));
    }
    return growing.all.back().get();
  };
  return {.values = memory(e4m3_values_, num_tokens * w.padded_columns()),
          .scales = static_cast<float*>(memory(e4m3_scales_, num_scales * 4)),
          .row_bytes = w.padded_columns(),
          .scale_stride = static_cast<int>(scale_stride),
          .has_chunks = has_chunks};
}

std::optional<QuantizedActivations> Gemms::quantized_input(const Tensor& x, const Weight& w) {
  const auto& weight = static_cast<const DeviceWeight&>(w).quantized;
  const int64_t num_tokens = x.shape[0];
  if (!is_native_ || x.dtype != DType::kBF16 || num_tokens < kFewestSwapAbTokens || !weight ||
      !weight->quantizes_activations || weight->group_shift == kWholeShift ||
      weight->k % kQuantizedChunk != 0)
    return {};
  return e4m3_activations(*weight, num_tokens, (num_tokens + 3) / 4 * 4);
}

void Gemms::quantize(const QuantizedActivations& to, const GemmInput& x) {
  if (x.quantized != to) quantize_rows(where_, to, x.x, x.norm);
}

std::vector<GemmChoice> Gemms::e4m3_candidates(const Call& call, const GemmArgs& args) {
  std::vector<std::pair<double, int>> tiles;
  if (has_e4m3_tiles(call)) tiles = best_tiles(args, call.in.x.dtype);
  std::vector<GemmChoice> all;
  // A tile's SwiGLU is faster than a separate one. With few tokens a measurement of the GEMM alone
  // does not show what cuBLASLt loses, since nothing of it overlaps with its neighbours in a step.
  const bool only_tiles = call.epilogue == Epilogue::kSwiglu || args.num_tokens <= kSwapAbTokens;
  if (!only_tiles || tiles.empty()) {
    const E4M3Matrices matrices = e4m3_matrices(call);
    const Tensor out = call.epilogue == Epilogue::kSwiglu ? call.scratch : call.out;
    all = cublaslt_.candidates(out.rows(0, matrices.x.shape[0]), matrices.x, matrices.w,
                               matrices.scales);
  }
  for (const auto& [cost, config] : tiles) all.push_back({.kernel = config});
  if (all.empty()) all.push_back({.kernel = GemmChoice::kDequantized});
  return all;
}

bool Gemms::run_e4m3(Call call) {
  const QuantizedWeight& w = *call.quantized;
  if (w.format != QuantizedFormat::kE4M3 || w.k > kMaxQuantizedColumns) return false;
  GemmArgs args = args_of(call);
  args.has_e4m3_x = true;
  Call measured = call;
  if (call.epilogue == Epilogue::kAdd) measured.out = call.scratch;
  const E4M3Matrices matrices = e4m3_matrices(call);
  const int operation = 3 * matrices.scales.w_kind + static_cast<int>(call.epilogue);
  const auto key = GemmChoices::key(operation, call.out, matrices.x, matrices.w);
  GemmChoice choice;
  if (kernels_.gemm >= 0 && has_e4m3_tiles(call)) {
    choice.kernel = kernels_.gemm;
    run_e4m3_as(choice, call);
    return true;
  }
  const GemmChoice known = choice = autotuner_.choose(
      key, args.num_tokens, [&] { return e4m3_candidates(call, args); },
      [&](GemmChoice& candidate) {
        // Candidates may write the memory of quantized activations in different layouts.
        measured.in.quantized = call.in.quantized = std::nullopt;
        if (candidate.kernel != GemmChoice::kDequantized) run_e4m3_as(candidate, measured);
      });
  if (choice.kernel >= 0 &&
      !(has_e4m3_tiles(call) && may_use(choice.kernel, args, call.in.x.dtype)))
    choice = e4m3_candidates(call, args).front();
  if (choice.kernel == GemmChoice::kDequantized) return false;
  run_e4m3_as(choice, call);
  if (choice != known) autotuner_.choices().set(key, {choice});
  return true;
}

bool Gemms::has_e4m3_tiles(const Call& call) const {
  // Gates and ups begin with a block of rows.
  return is_native_ && call.quantized->row_shift == 7 &&
         (call.epilogue != Epilogue::kSwiglu || call.out.shape[1] % 128 == 0);
}

Gemms::E4M3Matrices Gemms::e4m3_matrices(const Call& call) {
  const QuantizedWeight& w = *call.quantized;
  // cuBLASLt multiplies multiples of four tokens.
  const int64_t num_tokens = call.in.x.shape[0] / 4 * 4;
  const QuantizedActivations activations = e4m3_activations(w, num_tokens, num_tokens);
  E4M3Matrices made = {{activations.values, DType::kE4M3, num_tokens, w.k},
                       {const_cast<void*>(w.values), DType::kE4M3, w.n, w.k},
                       {}};
  made.x.row_stride = made.w.row_stride = w.padded_columns();
  const auto kind = activations.has_chunks ? E4M3Scales::kChunks : E4M3Scales::kRows;
  made.scales = {.x = activations.scales,
                 .w = reinterpret_cast<const float*>(w.scales),
                 .x_kind = kind,
                 .w_kind = w.row_shift == 7 ? E4M3Scales::kBlocks : kind};
  return made;
}

void Gemms::run_e4m3_as(GemmChoice& choice, Call call) {
  const QuantizedWeight& w = *call.quantized;
  const int64_t all = call.in.x.shape[0], rest = choice.kernel >= 0 ? 0 : all % 4;
  const int64_t num_tokens = all - rest;
  if (call.in.residual != nullptr) call.in.residual->begun_norm.reset();
  if (rest > 0 && call.in.norm.weight) {
    cuda::rms_norm(where_, call.in.residual->scratch(), call.in.x, call.in.norm);
    call.in = call.in.residual->scratch();
  }
  const QuantizedActivations x = e4m3_activations(w, num_tokens, (num_tokens + 3) / 4 * 4);
  GemmInput multiplied = call.in;
  multiplied.x = call.in.x.rows(0, num_tokens);
  quantize(x, multiplied);
  if (choice.kernel >= 0) {
    GemmArgs args = args_of(call);
    args.norm = nullptr;
    args.has_e4m3_x = true;
    args.quantized_x = &x;
    return tile_gemm(where_, args, choice.kernel, tile_scratch());
  }
  const bool swiglu = call.epilogue == Epilogue::kSwiglu;
  const Tensor out = (swiglu ? call.scratch : call.out).rows(0, num_tokens);
  const E4M3Matrices matrices = e4m3_matrices(call);
  cublaslt_.run(choice, out, matrices.x, matrices.w, matrices.scales,
                call.epilogue == Epilogue::kAdd);
  if (call.bias) cuda::add(where_, out, call.bias);
  if (swiglu) cuda::silu_mul(where_, call.out.rows(0, num_tokens), out);
  if (rest == 0) return;
  // The last one to three tokens, since cuBLASLt multiplies multiples of four.
  call.out = call.out.rows(num_tokens, rest);
  call.in.x = call.in.x.rows(num_tokens, rest);
  if (call.scratch) call.scratch = call.scratch.rows(num_tokens, rest);
  run_quantized_small(call);
}

}  // namespace nanovllm::cuda
