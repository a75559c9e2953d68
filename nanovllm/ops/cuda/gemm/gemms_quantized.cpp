#include <algorithm>
#include <bit>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/gemms.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"

// GEMMs with quantized weights: which way computes which (quantized/quantized_gemm.h).
namespace nanovllm::cuda {

void Gemms::reserve_dequantized(const QuantizedWeight& w, DType dtype) {
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

void Gemms::run_quantized(Call call) {
  // From here on the tensor cores' larger instructions are faster, where they are possible.
  constexpr int64_t kFew = 8;
  const int64_t num_tokens = call.in.x.shape[0];
  if (is_native_ && num_tokens > kFew) {
    if (call.quantized->quantizes_activations && run_e4m3(call)) return;
    if (run_swap_ab(call)) return;
  }
  if (num_tokens <= kFewTokens) return run_quantized_small(call);
  call.w = dequantized(*call.quantized, call.in.x.dtype);
  call.quantized = nullptr;
  call.w_is_new = true;
  run(call);
}

void Gemms::run_quantized_small(const Call& call) {
  GemmArgs args = args_of(call);
  args.w = call.quantized->values;
  const DType dtype = call.in.x.dtype;
  if (call.in.norm.weight && (args.k > kMaxQuantizedNormK || args.float_out))
    apply_norm(call, GemmChoice::kCublasLt, args);  // nothing finishes it: a kernel of its own
  if (call.epilogue == Epilogue::kSwiglu && args.norm == nullptr) {
    args.epilogue = Epilogue::kStore;
    args.out = call.scratch.data;
    args.n *= 2;
    quantized_small_gemm(where_, args, *call.quantized, dtype);
    return cuda::silu_mul(where_, call.out, call.scratch);
  }
  quantized_small_gemm(where_, args, *call.quantized, dtype);
}

bool Gemms::run_swap_ab(const Call& call) {
  // Reading the weights again for every kSwapAbTokens tokens takes less time than dequantizing
  // them.
  constexpr int kMostTokens = 128;
  const int num_tokens = static_cast<int>(call.in.x.shape[0]);
  GemmArgs args = args_of(call);
  args.w = call.quantized->values;
  args.norm = nullptr;
  args.num_tokens = std::min(num_tokens, kSwapAbTokens);
  if (num_tokens > kMostTokens || !supports_quantized_swap_ab(args, *call.quantized)) return false;
  if (call.in.norm.weight) {
    const Tensor normed = call.in.residual->scratch();
    call.in.residual->begun_norm = 0;
    cuda::rms_norm(where_, normed, call.in.x, call.in.norm);
    args.x = normed.data;
  }
  for (int first = 0; first < num_tokens; first += kSwapAbTokens) {
    GemmArgs part = args;
    const auto after = [&](const void* start, int64_t width) {
      return static_cast<const char*>(start) + int64_t{first} * width * 2;
    };
    part.x = after(args.x, args.k);
    part.out = const_cast<char*>(after(args.out, args.n));
    part.num_tokens = std::min(num_tokens - first, kSwapAbTokens);
    quantized_swap_ab_gemm(where_, part, *call.quantized, call.in.x.dtype);
  }
  return true;
}

bool Gemms::run_e4m3(Call call) {
  const QuantizedWeight& w = *call.quantized;
  const int64_t k = call.in.x.shape[1];
  if (w.format != QuantizedFormat::kE4M3 || k > kMaxQuantizedColumns) return false;
  GemmArgs args = args_of(call);
  args.w = w.values;
  if (!supports_e4m3_swap_ab(args, w))
    return args.num_tokens > kFewTokens && run_e4m3_by_cublaslt(call);
  const QuantizedActivations x =
      e4m3_activations(w, args.num_tokens, (args.num_tokens + 3) / 4 * 4);
  quantize_rows(where_, x, call.in.x, call.in.norm);
  e4m3_swap_ab_gemm(where_, args, w, x, call.in.x.dtype);
  return true;
}

QuantizedActivations Gemms::e4m3_activations(const QuantizedWeight& w, int64_t num_tokens,
                                             int64_t scale_stride) {
  const bool has_chunks = w.group_shift != kWholeShift;
  const int64_t value_bytes = num_tokens * w.padded_columns();
  const int64_t num_scales = scale_stride * (has_chunks ? w.padded_columns() / kQuantizedChunk : 1);
  const auto bytes = static_cast<size_t>(value_bytes + num_scales * 4);
  if (bytes > e4m3_bytes_) {
    e4m3_bytes_ = std::bit_ceil(bytes);
    e4m3_.push_back(allocate_(e4m3_bytes_));  // graphs may use the old memory
  }
  char* const memory = static_cast<char*>(e4m3_.back().get());
  return {.values = memory,
          .scales = reinterpret_cast<float*>(memory + value_bytes),
          .row_bytes = w.padded_columns(),
          .scale_stride = static_cast<int>(scale_stride),
          .has_chunks = has_chunks};
}

bool Gemms::run_e4m3_by_cublaslt(Call call) {
  const QuantizedWeight& w = *call.quantized;
  const int64_t k = call.in.x.shape[1];
  // cuBLASLt multiplies multiples of four tokens; the others are as few as a small GEMM computes.
  const int64_t rest = call.in.x.shape[0] % 4, num_tokens = call.in.x.shape[0] - rest;
  const QuantizedActivations quantized = e4m3_activations(w, num_tokens, num_tokens);
  Tensor x(quantized.values, DType::kE4M3, num_tokens, k);
  Tensor matrix(const_cast<void*>(w.values), DType::kE4M3, w.n, k);
  x.row_stride = matrix.row_stride = w.padded_columns();
  const auto kind = quantized.has_chunks ? E4M3Scales::kChunks : E4M3Scales::kRows;
  const E4M3Scales scales = {.x = quantized.scales,
                             .w = reinterpret_cast<const float*>(w.scales),
                             .x_kind = kind,
                             .w_kind = w.row_shift == 7 ? E4M3Scales::kBlocks : kind};

  const bool adds = call.epilogue == Epilogue::kAdd, swiglu = call.epilogue == Epilogue::kSwiglu;
  const Tensor out = (swiglu ? call.scratch : call.out).rows(0, num_tokens);
  const Tensor measured = adds ? call.scratch.rows(0, num_tokens) : out;
  const GemmChoices::Key key = GemmChoices::key(2 * scales.w_kind + (adds ? 1 : 0), out, x, matrix);
  GemmChoice choice;
  const GemmChoice known = choice = autotuner_.choose(
      key, num_tokens,
      [&] {
        std::vector<GemmChoice> all = cublaslt_.candidates(measured, x, matrix, scales);
        if (all.empty()) all.push_back({.kernel = GemmChoice::kDequantized});
        return all;
      },
      [&](GemmChoice& candidate) {
        if (candidate.kernel == GemmChoice::kCublasLt)
          cublaslt_.run(candidate, measured, x, matrix, scales, adds);
      });
  if (choice.kernel != GemmChoice::kCublasLt) return false;

  if (rest > 0 && call.in.norm.weight && k > kMaxQuantizedNormK) {
    cuda::rms_norm(where_, call.in.residual->scratch(), call.in.x, call.in.norm);
    call.in = call.in.residual->scratch();
  }
  quantize_rows(where_, quantized, call.in.x.rows(0, num_tokens), call.in.norm);
  cublaslt_.run(choice, out, x, matrix, scales, adds);
  if (choice != known) autotuner_.choices().set(key, {choice});
  if (call.bias) cuda::add(where_, out, call.bias);
  if (swiglu) cuda::silu_mul(where_, call.out.rows(0, num_tokens), out);
  if (rest == 0) return true;
  call.out = call.out.rows(num_tokens, rest);
  call.in.x = call.in.x.rows(num_tokens, rest);
  if (call.scratch) call.scratch = call.scratch.rows(num_tokens, rest);
  run_quantized_small(call);
  return true;
}

}  // namespace nanovllm::cuda
