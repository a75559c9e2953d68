#pragma once

#include <cstdint>

#include "nanovllm/ops/cuda/elementwise/quantized_activations.h"
#include "nanovllm/ops/quantized.h"

namespace nanovllm::cuda {

/// A quantized weight [n, k] in the device's memory. A kernel multiplies the values, which are
/// exact in 16 bits, and applies the scales to the sums in float32.
///
/// E4M3 values have the order of the checkpoint. Integers are ordered within a chunk of a row so
/// that 16 contiguous bytes are what one lane feeds to the tensor cores (quantized_place()).
///
/// A scale is a word: for E4M3 a float32; for integers a 16-bit float in the low half and the zero
/// point in the high half. Row r and column c have the word (r >> row_shift) * row_stride +
/// (c >> group_shift) * group_stride, so that cuBLASLt can read the scales of E4M3.
struct QuantizedWeight {
  QuantizedFormat format = QuantizedFormat::kE4M3;
  const void* values = nullptr;      // [n, row_bytes()]
  const uint32_t* scales = nullptr;  // the words
  int n = 0, k = 0;
  int row_shift = 0, group_shift = 0;
  int row_stride = 0, group_stride = 0;
  bool has_bf16_scales = false;  ///< integers have bfloat16 scales; false: float16
  bool quantizes_activations = false;

  constexpr int padded_columns() const {
    return (k + kQuantizedChunk - 1) / kQuantizedChunk * kQuantizedChunk;
  }
  constexpr int64_t row_bytes() const {
    return format == QuantizedFormat::kInt4 ? padded_columns() / 2 : padded_columns();
  }
};

/// A shift that maps every column to group 0, or every row to row 0.
inline constexpr int kWholeShift = 30;

/// Where column c of a chunk is stored: 8-bit integers at this byte, 4-bit integers in the nibble
/// `nibble` of the 32-bit word `word`. Lane p of a quad has 16 bytes for each 64 or 128 columns. It
/// needs columns 2 p and 2 p + 1 of each 8, as an operand of the matrix instruction does; bits 4 i
/// and 4 i + 16 of a word hold such a pair, so that one mask extracts both.
struct QuantizedPlace {
  int byte, word, nibble;
};
constexpr QuantizedPlace quantized_place(int column) {
  const int group = column / 32, eight = column % 32 / 8, lane = column % 8 / 2, odd = column % 2;
  return {group / 2 * 64 + lane * 16 + group % 2 * 8 + eight * 2 + odd, lane * 4 + group,
          eight + 4 * odd};
}

}  // namespace nanovllm::cuda
