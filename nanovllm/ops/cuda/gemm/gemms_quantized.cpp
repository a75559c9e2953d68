#include <bit>
#include <cstdlib>

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
  const int64_t num_tokens = call.in.x.shape[0];
  const DType dtype = call.in.x.dtype;
  if (num_tokens <= kFewTokens) return run_quantized_small(call);
  if (is_native_ && call.quantized->quantizes_activations && run_e4m3(call)) return;
  if (is_native_ && run_swap_ab(call)) return;
  call.w = dequantized(*call.quantized, dtype);
  call.quantized = nullptr;
  run(call);
}

void Gemms::run_quantized_small(const Call& call) {
  GemmArgs args = args_of(call);
  args.w = call.quantized->values;
  const DType dtype = call.in.x.dtype;
  if (call.in.norm.weight && (args.k > kMaxQuantizedNormK || args.float_out))
    apply_norm(call, /*is_swap_ab=*/false, args);
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
  if (getenv("NO_QSWAP")) return false;
  GemmArgs args = args_of(call);
  args.w = call.quantized->values;
  args.norm = nullptr;
  if (!supports_quantized_swap_ab(args, *call.quantized, call.in.x.dtype)) return false;
  args = args_of(call);
  apply_norm(call, /*is_swap_ab=*/false, args);
  args.w = call.quantized->values;
  quantized_swap_ab_gemm(where_, args, *call.quantized);
  return true;
}

bool Gemms::run_e4m3(Call call) {
  const QuantizedWeight& w = *call.quantized;
  const int64_t k = call.in.x.shape[1];
  if (w.format != QuantizedFormat::kE4M3 || k > kMaxQuantizedColumns) return false;
  // cuBLASLt multiplies multiples of four tokens; the others are as few as a small GEMM computes.
  const int64_t rest = call.in.x.shape[0] % 4, num_tokens = call.in.x.shape[0] - rest;
  const bool has_rows = w.group_shift == kWholeShift;
  const int64_t chunks = w.padded_columns() / kQuantizedChunk;
  const int64_t value_bytes = num_tokens * w.padded_columns();
  char* const memory =
      e4m3_memory(static_cast<size_t>(value_bytes + num_tokens * (has_rows ? 1 : chunks) * 4));
  Tensor x(memory, DType::kE4M3, num_tokens, k);
  Tensor matrix(const_cast<void*>(w.values), DType::kE4M3, w.n, k);
  x.row_stride = matrix.row_stride = w.padded_columns();
  const E4M3Scales scales = {.x = reinterpret_cast<const float*>(memory + value_bytes),
                             .w = reinterpret_cast<const float*>(w.scales),
                             .x_kind = has_rows ? E4M3Scales::kRows : E4M3Scales::kChunks,
                             .w_kind = has_rows           ? E4M3Scales::kRows
                                       : w.row_shift == 7 ? E4M3Scales::kBlocks
                                                          : E4M3Scales::kChunks};

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
  quantize_rows(where_,
                {.values = x.data,
                 .scales = const_cast<float*>(scales.x),
                 .row_bytes = x.row_stride,
                 .has_chunks = !has_rows},
                call.in.x.rows(0, num_tokens), call.in.norm);
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

char* Gemms::e4m3_memory(size_t bytes) {
  if (bytes > e4m3_bytes_) {
    e4m3_bytes_ = std::bit_ceil(bytes);
    e4m3_.push_back(allocate_(e4m3_bytes_));  // graphs may use the old memory
  }
  return static_cast<char*>(e4m3_.back().get());
}

}  // namespace nanovllm::cuda
