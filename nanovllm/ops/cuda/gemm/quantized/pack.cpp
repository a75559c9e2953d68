#include "nanovllm/ops/cuda/gemm/quantized/pack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

namespace nanovllm::cuda {

namespace {

constexpr int kChunk = kQuantizedChunk;
using Chunk = std::array<uint8_t, kChunk>;

// pack_int8() and pack_int4() write a chunk in the order of quantized_place(), the pairs of a lane
// and a group of 32 columns at once.
void pack_int8(const uint8_t* from, uint8_t* to) {
  for (int group = 0; group < kChunk / 32; ++group)
    for (int lane = 0; lane < 4; ++lane) {
      const uint8_t* const in = from + group * 32 + lane * 2;
      uint8_t* const out = to + quantized_place(group * 32 + lane * 2).byte;
      for (int i = 0; i < 4; ++i) out[2 * i] = in[8 * i], out[2 * i + 1] = in[8 * i + 1];
    }
}
void pack_int4(const uint8_t* from, uint8_t* to) {
  std::array<uint32_t, kChunk / 8> words = {};
  for (int group = 0; group < kChunk / 32; ++group)
    for (int lane = 0; lane < 4; ++lane) {
      const uint8_t* const in = from + group * 32 + lane * 2;
      uint32_t& word = words[static_cast<size_t>(quantized_place(group * 32 + lane * 2).word)];
      for (int i = 0; i < 4; ++i)
        word |= uint32_t{in[8 * i]} << (4 * i) | uint32_t{in[8 * i + 1]} << (4 * i + 16);
    }
  std::memcpy(to, words.data(), sizeof words);
}

/// The rows of a part as the device stores them.
WeightRows stored_rows(const QuantizedRows& part, const QuantizedWeight& weight) {
  const int64_t row_bytes = weight.row_bytes();
  return {DType::kE4M3, part.rows.count, row_bytes,
          [part, row_bytes](int64_t first_byte, int64_t count, void* to) {
            const QuantizedMatrix& matrix = *part.matrix;
            const Range rows = {part.rows.first + first_byte / row_bytes, count / row_bytes};
            const int64_t columns = part.columns.count;
            auto* out = static_cast<uint8_t*>(to);
            if (matrix.format == QuantizedFormat::kE4M3 && columns == row_bytes)
              return matrix.values(rows, part.columns, out);
            std::vector<uint8_t> values(static_cast<size_t>(rows.count * columns));
            matrix.values(rows, part.columns, values.data());
            const uint8_t* from = values.data();
            for (int64_t row = 0; row < rows.count; ++row)
              for (int64_t column = 0; column < columns; column += kChunk) {
                const int64_t size = std::min<int64_t>(kChunk, columns - column);
                Chunk chunk = {};
                std::copy_n(from, size, chunk.data());
                from += size;
                switch (matrix.format) {
                  case QuantizedFormat::kE4M3:
                    std::ranges::copy(chunk, out);
                    break;
                  case QuantizedFormat::kInt8:
                    pack_int8(chunk.data(), out);
                    break;
                  case QuantizedFormat::kInt4:
                    pack_int4(chunk.data(), out);
                    break;
                }
                out += matrix.format == QuantizedFormat::kInt4 ? kChunk / 2 : kChunk;
              }
          }};
}

/// Whether float16 holds a scale at least as exactly as bfloat16 does: it holds it exactly, or as a
/// normal number, whose mantissa has three bits more than that of bfloat16.
bool suits_f16(float x) { return f16_to_f32(f32_to_f16(x)) == x || (x >= 0x1p-14f && x <= 65504); }

/// The word with the scale and the zero point of an element.
uint32_t scale_word(const QuantizedMatrix& matrix, const QuantizedWeight& weight, int64_t row,
                    int64_t column) {
  const float scale = matrix.scale(row, column);
  if (weight.format == QuantizedFormat::kE4M3) return std::bit_cast<uint32_t>(scale);
  const uint16_t half = weight.has_bf16_scales ? f32_to_bf16(scale) : f32_to_f16(scale);
  return half | static_cast<uint32_t>(matrix.zero(row, column)) << 16;
}

}  // namespace

std::optional<QuantizedPack> pack_quantized(std::span<const WeightRows> parts) {
  std::vector<QuantizedRows> all;
  int64_t n = 0;
  for (const WeightRows& part : parts) {
    all.push_back(part.quantized());
    n += part.num_rows();
  }
  const int64_t k = parts.front().num_columns();
  if (all.front().matrix == nullptr || n % 16 != 0 || k % 16 != 0) return std::nullopt;
  const QuantizedFormat format = all.front().matrix->format;
  // The columns of a group: the largest power of two of which all groups and borders are multiples,
  // or all columns.
  int64_t group = 0, row = 0;
  bool has_blocks = true;  // scales of 128 rows each, which begin at multiples of 128 in the stack
  bool has_f16_scales = true, has_zeros = true;
  for (const QuantizedRows& part : all) {
    if (part.matrix == nullptr || part.matrix->format != format) return std::nullopt;
    const QuantizedMatrix& m = *part.matrix;
    if (!m.groups.empty()) return std::nullopt;
    if (m.scale_columns < m.num_columns)
      group = std::gcd(group, std::gcd(m.scale_columns, part.columns.first));
    has_blocks = has_blocks && m.scale_rows == 128 && part.rows.first % 128 == 0 && row % 128 == 0;
    row += part.rows.count;
    has_f16_scales = has_f16_scales && std::ranges::all_of(m.scales, suits_f16);
    has_zeros = has_zeros && std::ranges::all_of(m.zeros, [](int z) { return z >= 0 && z <= 256; });
  }
  group = group & -group;  // the largest power of two that divides it
  const bool is_e4m3 = format == QuantizedFormat::kE4M3;
  if (!has_zeros || (group != 0 && group < least_gpu_group(format))) return std::nullopt;
  group = std::min<int64_t>(group, kChunk);
  if (!is_e4m3 && group != 0 && group < kChunk) group = 32;
  // Kernels read the scales of whole chunks.
  const int64_t padded = (k + kChunk - 1) / kChunk * kChunk;
  const int64_t num_groups = group == 0 ? 1 : padded / group;
  has_blocks = has_blocks && is_e4m3 && group == kChunk;

  QuantizedPack pack;
  QuantizedWeight& weight = pack.weight;
  weight = {.format = format, .n = static_cast<int>(n), .k = static_cast<int>(k)};
  weight.has_bf16_scales = !has_f16_scales;
  weight.quantizes_activations = std::ranges::all_of(
      all, [](const QuantizedRows& part) { return part.matrix->quantizes_activations; });
  weight.group_shift = group == 0 ? kWholeShift : std::countr_zero(static_cast<uint64_t>(group));
  weight.row_shift = has_blocks ? 7 : 0;
  // Blocks are stored in the order that cuBLASLt needs: a multiple of four for each row of blocks.
  weight.row_stride = has_blocks ? static_cast<int>((num_groups + 3) / 4 * 4) : 1;
  weight.group_stride = has_blocks ? 1 : weight.n;
  const int64_t rows_of_words = has_blocks ? (n + 127) / 128 : n;
  pack.scales.resize(static_cast<size_t>(has_blocks ? rows_of_words * weight.row_stride
                                                    : num_groups * rows_of_words));
  int64_t first = 0;
  for (const QuantizedRows& part : all) {
    for (int64_t i = 0; i < part.rows.count; i += has_blocks ? 128 : 1)
      for (int64_t g = 0; g == 0 || (group != 0 && g * group < k); ++g)
        pack.scales[static_cast<size_t>(((first + i) >> weight.row_shift) * weight.row_stride +
                                        g * weight.group_stride)] =
            scale_word(*part.matrix, weight, part.rows.first + i, part.columns.first + g * group);
    pack.rows.push_back(stored_rows(part, weight));
    first += part.rows.count;
  }
  return pack;
}

}  // namespace nanovllm::cuda
