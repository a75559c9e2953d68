#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "nanovllm/ops/cpu/elementwise.h"
#include "nanovllm/ops/cpu/gemm/gemm.h"
#include "nanovllm/ops/cpu/machine/parallel.h"
#include "tests/ops/matrix.h"

namespace nanovllm::cpu {
namespace {

struct Kind {
  QuantizedFormat format;
  int64_t scale_rows, scale_columns;
  bool has_zeros = false, has_order = false;
};

QuantizedMatrix random_quantized(const Kind& kind, int64_t n, int64_t k, unsigned seed) {
  std::mt19937 generator(seed);
  QuantizedMatrix m{.format = kind.format,
                    .num_rows = n,
                    .num_columns = k,
                    .scale_rows = kind.scale_rows,
                    .scale_columns = kind.scale_columns};
  const int largest = kind.format == QuantizedFormat::kInt4 ? 15 : 255;
  std::vector<uint8_t> bytes(static_cast<size_t>(n * k));
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(generator() % static_cast<unsigned>(largest + 1));
    if (kind.format == QuantizedFormat::kE4M3 && (byte & 127) == 127) byte = 0;
  }
  std::uniform_real_distribution<float> scale(0.5f, 2.0f);
  const float unit =
      kind.format == QuantizedFormat::kE4M3 ? 1.0f / 64 : 2.0f / static_cast<float>(largest + 1);
  for (int64_t i = 0; i < m.num_scales(); ++i) {
    m.scales.push_back(scale(generator) * unit);
    if (kind.has_zeros)
      m.zeros.push_back(static_cast<int16_t>(generator() % static_cast<unsigned>(largest + 1)));
  }
  if (kind.has_order) {
    // As GPTQ's: every group has scale_columns columns, anywhere.
    for (int64_t i = 0; i < k; ++i)
      m.groups.push_back(static_cast<int32_t>(i / kind.scale_columns));
    std::shuffle(m.groups.begin(), m.groups.end(), generator);
  }
  m.values = [bytes = std::move(bytes), k](Range rows, Range columns, uint8_t* to) {
    for (int64_t r = rows.first; r < rows.first + rows.count; ++r, to += columns.count)
      std::memcpy(to, bytes.data() + r * k + columns.first, static_cast<size_t>(columns.count));
  };
  return m;
}

WeightRows quantized_rows(const Kind& kind, int64_t n, int64_t k, unsigned seed) {
  return {n, k, [=] { return random_quantized(kind, n, k, seed); }};
}

/// The elements of a weight, exactly.
Matrix dequantized(const WeightRows& rows) {
  Matrix matrix(DType::kF32, rows.num_rows(), rows.num_columns());
  rows.read(0, rows.num_rows(), matrix.tensor.data);
  return matrix;
}

/// Elements that quantizing does not change, not even to 8 bits, since every group has one of the
/// largest: half of the elements are. Those of a group that may be cut short all are.
Matrix exact_x(DType dtype, int64_t m, int64_t k, unsigned seed, bool any_order = false) {
  std::mt19937 generator(seed);
  Matrix x(dtype, m, k, k + 3);
  for (int64_t r = 0; r < m; ++r)
    for (int64_t c = 0; c < k; ++c) {
      int value = static_cast<int>(generator() % 255) - 127;
      if (generator() % 2 == 0 || c >= (any_order && k % 32 != 0 ? 0 : k / 32 * 32))
        value = value < 0 ? -127 : 127;
      x.set(r, c, static_cast<float>(value) / 128);
    }
  return x;
}

void expect_product(const Matrix& out, const Matrix& x, const std::vector<Matrix>& parts,
                    const float* bias, double tolerance_of_x = 0) {
  const double rounding = out.tensor.dtype == DType::kF32    ? 1e-6
                          : out.tensor.dtype == DType::kBF16 ? 0x1p-8
                                                             : 0x1p-11;
  const int64_t k = x.tensor.shape[1];
  for (int64_t r = 0; r < x.tensor.shape[0]; ++r) {
    int64_t column = 0;
    for (const Matrix& part : parts)
      for (int64_t c = 0; c < part.tensor.shape[0]; ++c, ++column) {
        double sum = bias ? bias[column] : 0, size = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum += double{x.at(r, i)} * double{part.at(c, i)};
          size += std::abs(double{part.at(c, i)});
        }
        const double tolerance = std::abs(sum) * rounding + tolerance_of_x * size +
                                 2e-5 * std::sqrt(static_cast<double>(k));
        ASSERT_NEAR(out.at(r, column), sum, tolerance) << "row " << r << ", column " << column;
      }
  }
}

const Kind kKinds[] = {
    {QuantizedFormat::kInt8, 1, 1 << 20},
    {QuantizedFormat::kInt8, 1, 32, true},
    {QuantizedFormat::kInt8, 1, 128},
    {QuantizedFormat::kInt8, 1, 64, true, true},
    {QuantizedFormat::kInt4, 1, 128},
    {QuantizedFormat::kInt4, 1, 128, true},
    {QuantizedFormat::kInt4, 1, 32, true},
    {QuantizedFormat::kInt4, 1, 1 << 20, true},
    {QuantizedFormat::kInt4, 1, 128, true, true},
    // Groups that the kernels do not support are multiplied as floats.
    {QuantizedFormat::kInt4, 1, 40, true},
    {QuantizedFormat::kInt8, 1, 48, false, true},
    {QuantizedFormat::kE4M3, 1, 1 << 20},
    {QuantizedFormat::kE4M3, 1 << 20, 1 << 20},
    {QuantizedFormat::kE4M3, 128, 128},
};

std::string name(const Kind& kind) {
  return fmt::format("format {}, {} x {}{}{}", static_cast<int>(kind.format), kind.scale_rows,
                     kind.scale_columns, kind.has_zeros ? ", zeros" : "",
                     kind.has_order ? ", order" : "");
}

/// A quantized weight that is packed as floats is rounded to the model's dtype.
double float_tolerance(const PackedWeight& w) {
  return w.format ? 0 : w.dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
}

TEST(QuantizedGemm, EqualsTheProductWithTheDequantizedWeight) {
  struct Shape {
    int64_t m, n, k;
  };
  for (Isa isa : isas())
    for (const Kind& kind : kKinds)
      for (const Shape s : {Shape{1, 1, 1},
                            {1, 33, 7},
                            {1, 200, 300},
                            {2, 65, 64},
                            {3, 31, 257},
                            {4, 130, 128},
                            {5, 40, 700},
                            {6, 100, 1100},
                            {9, 40, 1500},
                            {7, 48, 160},
                            {21, 72, 1152},
                            {13, 257, 300},
                            {125, 70, 136},
                            {260, 40, 31}}) {
        const DType dtype = s.n % 2 == 0 ? DType::kBF16 : DType::kF16;
        SCOPED_TRACE(testing::Message()
                     << isa_name(isa) << ", " << name(kind) << ", " << dtype_name(dtype) << ", m "
                     << s.m << ", n " << s.n << ", k " << s.k);
        const int threads = s.m % 2 == 0 ? 1 : 2;
        cpu::set_num_threads(threads);
        Gemm gemm(isa, threads);
        const WeightRows rows = quantized_rows(kind, s.n, s.k, 1);
        std::vector<Matrix> parts;
        parts.push_back(dequantized(rows));
        const auto packed = gemm.pack(rows, dtype);
        const Matrix x = exact_x(dtype, s.m, s.k, 2, kind.has_order);
        Matrix out(dtype, s.m, s.n, s.n + 5), out_f32(DType::kF32, s.m, s.n);
        std::memset(out.bytes.data(), 0x5a, out.bytes.size());
        gemm.matmul(out.tensor, x.tensor, *packed, {});
        expect_product(out, x, parts, nullptr, float_tolerance(*packed));
        if (s.m > 1) {
          EXPECT_EQ(out.tensor.as<uint16_t>()[s.n], 0x5a5a);
        }
        const Matrix bias = random_matrix(DType::kF32, 1, s.n, 3);
        gemm.matmul(out_f32.tensor, x.tensor, *packed, Tensor(bias.tensor.data, DType::kF32, s.n));
        expect_product(out_f32, x, parts, bias.tensor.as<float>(), float_tolerance(*packed));
      }
}

TEST(QuantizedGemm, KeepsTheFormatOfTheWeight) {
  Gemm gemm(best_isa(), 1);
  const auto format = [&](const Kind& kind) {
    return gemm.pack(quantized_rows(kind, 64, 256, 1), DType::kBF16)->format;
  };
  EXPECT_EQ(format({QuantizedFormat::kInt8, 1, 256}), QuantizedFormat::kInt8);
  EXPECT_EQ(format({QuantizedFormat::kInt4, 1, 128, true, true}), QuantizedFormat::kInt4);
  EXPECT_EQ(format({QuantizedFormat::kE4M3, 128, 128}), QuantizedFormat::kE4M3);
  EXPECT_EQ(format({QuantizedFormat::kInt4, 1, 40}), std::nullopt);
  // In float32 nothing is rounded.
  EXPECT_EQ(
      gemm.pack(quantized_rows({QuantizedFormat::kInt8, 1, 256}, 64, 256, 1), DType::kF32)->format,
      std::nullopt);
}

TEST(QuantizedGemm, NanInE4M3StaysNan) {
  QuantizedMatrix matrix = random_quantized({QuantizedFormat::kE4M3, 1, 64}, 40, 64, 1);
  matrix.values = [values = matrix.values](Range rows, Range columns, uint8_t* to) {
    values(rows, columns, to);
    if (rows.first == 32) to[0] = 0xff;
  };
  Gemm gemm(best_isa(), 1);
  const auto packed = gemm.pack(WeightRows(40, 64, [=] { return matrix; }), DType::kBF16);
  const Matrix x = exact_x(DType::kBF16, 1, 64, 1);
  Matrix out(DType::kF32, 1, 40);
  gemm.matmul(out.tensor, x.tensor, *packed, {});
  for (int64_t c = 0; c < 40; ++c) EXPECT_EQ(std::isnan(out.at(0, c)), c == 32) << c;
}

TEST(QuantizedGemm, StacksPartsOfRanks) {
  // Parts as a rank has them: some rows of each matrix, and columns that begin inside a group.
  for (Isa isa : isas())
    for (const Kind& kind : kKinds)
      for (const Range columns : {Range{0, 512}, Range{64, 192}, Range{32, 480}, Range{7, 64}}) {
        SCOPED_TRACE(testing::Message() << isa_name(isa) << ", " << name(kind) << ", columns from "
                                        << columns.first << ", " << columns.count);
        Gemm gemm(isa, 1);
        const WeightRows rows[] = {quantized_rows(kind, 150, 512, 1).part({9, 141}, columns),
                                   quantized_rows(kind, 40, 512, 1).part({0, 17}, columns),
                                   quantized_rows(kind, 40, 512, 1).part({30, 10}, columns)};
        std::vector<Matrix> parts;
        for (const WeightRows& part : rows) parts.push_back(dequantized(part));
        const auto packed = gemm.pack(rows, DType::kF16);
        const Matrix x = exact_x(DType::kF16, 3, columns.count, 4);
        Matrix out(DType::kF32, 3, 168);
        gemm.matmul(out.tensor, x.tensor, *packed, {});
        expect_product(out, x, parts, nullptr, float_tolerance(*packed));
      }
}

/// By groups of 32, or of 128 if k is a multiple of that.
TEST(QuantizedGemm, QuantizesXByGroups) {
  // The error of an element is at most half of a step, which is a 32,639th of its group's largest.
  for (const auto& [k, group] : {std::pair<int64_t, int64_t>{352, 32}, {384, 128}}) {
    const WeightRows rows = quantized_rows({QuantizedFormat::kInt8, 1, 1 << 20}, 96, k, 1);
    std::vector<Matrix> parts;
    parts.push_back(dequantized(rows));
    for (Isa isa : isas()) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << ", k " << k);
      Gemm gemm(isa, 1);
      Matrix x = random_matrix(DType::kBF16, 9, k, 5), out(DType::kF32, 9, 96);
      // Groups of other magnitudes lose nothing by a large one, nor by zeros or subnormal numbers.
      for (int64_t i = 0; i < group; ++i) {
        x.set(1, i, x.at(1, i) * 1e-3f);
        x.set(2, i, 0);
        x.set(3, i, 1e-39f);
      }
      double most = 0;
      for (int64_t r = 0; r < 9; ++r)
        for (int64_t i = 0; i < k; ++i) most = std::max(most, std::abs(double{x.at(r, i)}));
      gemm.matmul(out.tensor, x.tensor, *gemm.pack(rows, DType::kBF16), {});
      expect_product(out, x, parts, nullptr, most / 32639 / 2);
    }
  }
}

TEST(QuantizedGemm, BitsOfARowDoNotDependOnItsBatch) {
  const int64_t n = 70, most = 150;
  for (Isa isa : isas())
    for (const Kind& kind : kKinds)
      for (const int64_t k : {1100, 1152}) {
        SCOPED_TRACE(testing::Message() << isa_name(isa) << ", " << name(kind) << ", k " << k);
        Gemm gemm(isa, 1);
        const auto packed = gemm.pack(quantized_rows(kind, n, k, 1), DType::kBF16);
        if (!packed->format && isa == Isa::kAmx) continue;  // few rows have another kernel
        const Matrix x = random_matrix(DType::kBF16, most, k, 2);
        Matrix all(DType::kF32, most, n);
        gemm.matmul(all.tensor, x.tensor, *packed, {});
        for (int64_t m : {1, 6, 8, 16, 33})
          for (int64_t first : {int64_t{3}, most - m}) {
            Matrix out(DType::kF32, m, n);
            gemm.matmul(out.tensor, x.tensor.rows(first, m), *packed, {});
            ASSERT_EQ(
                std::memcmp(out.bytes.data(), all.tensor.rows(first, m).data, out.bytes.size()), 0)
                << m << " rows from " << first;
          }
      }
}

TEST(QuantizedGemm, XThatIsNotFiniteMakesItsRowNotFinite) {
  const WeightRows rows = quantized_rows({QuantizedFormat::kInt8, 1, 1 << 20}, 70, 96, 1);
  for (Isa isa : isas())
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Gemm gemm(isa, 1);
      Matrix x = random_matrix(DType::kBF16, 3, 96, 5), out(DType::kF32, 3, 70);
      x.set(1, 50, value);
      gemm.matmul(out.tensor, x.tensor, *gemm.pack(rows, DType::kBF16), {});
      for (int64_t c = 0; c < 70; ++c) {
        EXPECT_TRUE(std::isfinite(out.at(0, c)) && std::isfinite(out.at(2, c))) << isa_name(isa);
        EXPECT_FALSE(std::isfinite(out.at(1, c))) << isa_name(isa);
      }
    }
}

TEST(QuantizedGemm, EmbedsRows) {
  for (Isa isa : isas())
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << ", " << name(kind));
      const WeightRows rows = quantized_rows(kind, 70, 300, 1);
      const Matrix want = dequantized(rows);
      int32_t ids[] = {69, 0, 31, 32, kElsewhere};
      Matrix out(DType::kBF16, 5, 300);
      embed(out.tensor, *Gemm(isa, 1).pack(rows, DType::kBF16), Tensor(ids, DType::kI32, 5), isa);
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t c = 0; c < 300; ++c)
          ASSERT_EQ(out.at(r, c), r == 4 ? 0 : bf16_to_f32(f32_to_bf16(want.at(ids[r], c))));
    }
}

TEST(QuantizedGemm, ExpertsMultiplyTheirRows) {
  constexpr int64_t kExperts = 3, kN = 50, kK = 160, kTokens = 40;
  const int32_t starts[kExperts + 1] = {0, 33, 33, 70};
  for (Isa isa : isas())
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << ", " << name(kind));
      Gemm gemm(isa, 1);
      std::vector<WeightRows> rows;
      for (unsigned e = 0; e < kExperts; ++e) rows.push_back(quantized_rows(kind, kN, kK, e));
      // The order of columns is the same for all experts, as a rule of these kernels.
      if (kind.has_order) continue;
      const auto packed = gemm.pack(rows, DType::kBF16, kExperts);
      const Matrix x = exact_x(DType::kBF16, kTokens, kK, 6);
      std::vector<int32_t> token(70);
      for (size_t i = 0; i < token.size(); ++i) token[i] = static_cast<int32_t>(i * 7 % kTokens);
      Matrix out(DType::kBF16, 70, kN);
      Routing routing;
      routing.starts = Tensor(const_cast<int32_t*>(starts), DType::kI32, kExperts + 1);
      gemm.expert_matmul(out.tensor, x.tensor, *packed, routing,
                         Tensor(token.data(), DType::kI32, 70));
      for (size_t e = 0; e < kExperts; ++e) {
        const int64_t count = starts[e + 1] - starts[e];
        if (count == 0) continue;
        Matrix own(DType::kBF16, count, kK), own_out(DType::kBF16, count, kN);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t entry = starts[e] + i;
          for (int64_t c = 0; c < kK; ++c)
            own.set(i, c, x.at(token[static_cast<size_t>(entry)], c));
          for (int64_t c = 0; c < kN; ++c) own_out.set(i, c, out.at(entry, c));
        }
        std::vector<Matrix> parts;
        parts.push_back(dequantized(rows[e]));
        expect_product(own_out, own, parts, nullptr, float_tolerance(*packed));
      }
    }
}

}  // namespace
}  // namespace nanovllm::cpu
