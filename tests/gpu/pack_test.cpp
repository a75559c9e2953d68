#include "nanovllm/ops/cuda/gemm/quantized/pack.h"

#include <gtest/gtest.h>

#include <bit>

#include "quantized_weights.h"

// How quantized matrices of experts become one weight; needs no GPU.
namespace nanovllm::cuda {
namespace {

/// An element as a kernel finds it.
float element(const QuantizedPack& pack, std::span<const uint8_t> bytes, int64_t row, int column) {
  const QuantizedWeight& w = pack.weight;
  const int chunk = column / kQuantizedChunk, c = column % kQuantizedChunk;
  const uint8_t* const from =
      bytes.data() + row * w.row_bytes() +
      chunk * (w.format == QuantizedFormat::kInt4 ? kQuantizedChunk / 2 : kQuantizedChunk);
  const uint32_t word = pack.scales[static_cast<size_t>(
      (row >> w.row_shift) * w.row_stride + (int64_t{column} >> w.group_shift) * w.group_stride)];
  const QuantizedPlace place = quantized_place(c);
  const auto half = static_cast<uint16_t>(word);
  const float scale = w.has_bf16_scales ? bf16_to_f32(half) : f16_to_f32(half);
  const int zero = static_cast<int>(word >> 16);
  switch (w.format) {
    case QuantizedFormat::kE4M3:
      return e4m3_to_f32(from[c]) * std::bit_cast<float>(word);
    case QuantizedFormat::kInt8:
      return static_cast<float>(from[place.byte] - zero) * scale;
    case QuantizedFormat::kInt4: {
      const int bit = place.word * 32 + place.nibble * 4;
      return static_cast<float>((from[bit / 8] >> bit % 8 & 15) - zero) * scale;
    }
  }
  return 0;
}

TEST(PackQuantized, ExpertsFollowEachOther) {
  std::mt19937 random(1);
  for (const QuantizedKind& kind : {QuantizedKind{QuantizedFormat::kE4M3, 128, 128},
                                    QuantizedKind{QuantizedFormat::kE4M3, 1, 0},
                                    QuantizedKind{QuantizedFormat::kInt8, 1, 128, true},
                                    QuantizedKind{QuantizedFormat::kInt8, 1, 0},
                                    QuantizedKind{QuantizedFormat::kInt4, 1, 128, true},
                                    QuantizedKind{QuantizedFormat::kInt4, 1, 32}})
    for (const auto& [n, k] : {std::pair{128, 256}, {48, 144}}) {
      std::vector<WeightRows> parts;
      for (int i = 0; i < 6; ++i) parts.push_back(random_quantized(kind, n, k, 1, random));
      const auto pack = pack_quantized(parts);
      ASSERT_TRUE(pack) << name_of(kind);
      const int64_t row_bytes = pack->weight.row_bytes();
      ASSERT_EQ(pack->weight.n, 6 * n);
      ASSERT_EQ(pack->weight.k, k);
      ASSERT_EQ(pack->rows.size(), parts.size());
      std::vector<uint8_t> bytes(static_cast<size_t>(6 * n * row_bytes));
      std::vector<float> floats(static_cast<size_t>(6 * n * k));
      for (size_t i = 0; i < parts.size(); ++i) {
        pack->rows[i].read(0, n, bytes.data() + static_cast<int64_t>(i) * n * row_bytes);
        parts[i].read(0, n, floats.data() + static_cast<int64_t>(i) * n * k);
      }
      int num_wrong = 0;
      for (int64_t row = 0; row < 6 * n; ++row)
        for (int column = 0; column < k; ++column)
          num_wrong +=
              element(*pack, bytes, row, column) != floats[static_cast<size_t>(row * k + column)];
      EXPECT_EQ(num_wrong, 0) << name_of(kind) << " [" << n << ", " << k << "]";
    }
}

/// Scales that neither 16-bit type holds exactly get the one with more bits, unless they are so
/// small that it has fewer there.
TEST(PackQuantized, ScalesAreRoundedToTheMoreExactType) {
  for (const auto& [scale, error] : {std::pair{0.0123457f, 0x1p-11f}, {1.23457e-6f, 0x1p-8f}})
    for (const QuantizedFormat format : {QuantizedFormat::kInt8, QuantizedFormat::kInt4}) {
      const QuantizedKind kind = {format, 1, 0};
      const WeightRows part = quantized_weight(
          kind, 16, 128, [](int64_t, int64_t) { return uint8_t{5}; }, [&] { return scale; });
      const auto pack = pack_quantized({&part, 1});
      ASSERT_TRUE(pack);
      std::vector<uint8_t> bytes(static_cast<size_t>(16 * pack->weight.row_bytes()));
      pack->rows[0].read(0, 16, bytes.data());
      std::vector<float> floats(16 * 128);
      part.read(0, 16, floats.data());
      EXPECT_NEAR(element(*pack, bytes, 3, 7) / floats[3 * 128 + 7], 1, error) << name_of(kind);
    }
}

}  // namespace
}  // namespace nanovllm::cuda
