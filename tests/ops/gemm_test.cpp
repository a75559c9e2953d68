#include "nanovllm/ops/cpu/gemm/gemm.h"
#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

#include <gtest/gtest.h>
#include <cmath>
#include <cstring>
#include <tuple>

#include "tests/ops/matrix.h"

namespace nanovllm::cpu {
namespace {

/// Compares out with a GEMM in double. `rounding` is half an ulp of out's dtype. A float32 sum of k
/// terms of about 1 may differ by a few 1e-7 times sqrt(k).
void expect_gemm(const Matrix& out, const Matrix& x, const std::vector<const Matrix*>& parts,
                 const float* bias) {
  const double rounding = out.tensor.dtype == DType::kF32    ? 1e-6
                          : out.tensor.dtype == DType::kBF16 ? 0x1p-8
                                                             : 0x1p-11;
  const int64_t k = x.tensor.shape[1];
  for (int64_t r = 0; r < x.tensor.shape[0]; ++r) {
    int64_t column = 0;
    for (const Matrix* part : parts)
      for (int64_t c = 0; c < part->tensor.shape[0]; ++c, ++column) {
        double sum = bias ? bias[column] : 0;
        for (int64_t i = 0; i < k; ++i) sum += double{x.at(r, i)} * double{part->at(c, i)};
        const double tolerance =
            std::abs(sum) * rounding + 4e-6 * std::sqrt(static_cast<double>(k));
        ASSERT_NEAR(out.at(r, column), sum, tolerance) << "row " << r << ", column " << column;
      }
  }
}

TEST(Gemm, EqualsTheSumOfProductsForAllShapesAndDtypes) {
  struct Shape {
    int64_t m, n, k;
  };
  for (Isa isa : isas())
    for (int threads : {1, 2})
      for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
        for (const Shape s : {Shape{1, 1, 1},
                              {1, 33, 7},
                              {2, 512, 172},
                              {3, 31, 257},
                              {4, 65, 64},
                              {5, 130, 513},
                              {6, 35, 6000},
                              {7, 48, 256},
                              {12, 100, 40},
                              {13, 257, 300},
                              {26, 64, 8},
                              {121, 96, 264},
                              {260, 40, 31},
                              {257, 70, 100},
                              {256, 96, 64}}) {
          SCOPED_TRACE(testing::Message()
                       << isa_name(isa) << ", " << threads << " threads, " << dtype_name(dtype)
                       << ", m " << s.m << ", n " << s.n << ", k " << s.k);
          cpu::set_num_threads(threads);
          Gemm gemm(isa, threads, isa);
          const Matrix w = random_matrix(dtype, s.n, s.k, 1);
          const Matrix x = random_matrix(dtype, s.m, s.k, 2, s.k + 3);
          const auto packed = gemm.pack(w.tensor, dtype);
          Matrix out(dtype, s.m, s.n, s.n + 5), out_f32(DType::kF32, s.m, s.n);
          gemm.matmul(out.tensor, x.tensor, *packed, {});
          expect_gemm(out, x, {&w}, nullptr);
          Matrix bias = random_matrix(DType::kF32, 1, s.n, 3);
          gemm.matmul(out_f32.tensor, x.tensor, *packed,
                      Tensor(bias.tensor.data, DType::kF32, s.n));
          expect_gemm(out_f32, x, {&w}, bias.tensor.as<float>());
        }
}

TEST(Gemm, WritesNothingBetweenTheRowsOfItsOutput) {
  for (Isa isa : isas()) {
    Gemm gemm(isa, 1);
    const Matrix w = random_matrix(DType::kBF16, 50, 40, 1),
                 x = random_matrix(DType::kBF16, 3, 40, 2);
    Matrix out(DType::kBF16, 3, 50, 53);
    std::memset(out.bytes.data(), 0x5a, out.bytes.size());
    gemm.matmul(out.tensor, x.tensor, *gemm.pack(w.tensor, DType::kBF16), {});
    for (int64_t r = 0; r < 3; ++r)
      for (int64_t c = 50; c < 53; ++c)
        EXPECT_EQ(out.tensor.as<uint16_t>()[r * 53 + c], 0x5a5a) << isa_name(isa);
  }
}

TEST(Gemm, BitsOfARowDependOnNeitherItsBatchNorTheThreads) {
  // With AMX a block of x has 640 values of k of 96 rows, and all of k of few rows.
  const int64_t n = 1100, k = 1400, most = 513;
  for (Isa isa : isas())
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const bool has_other_kernel = dtype == DType::kBF16 && isa == Isa::kAmx;  // for few rows
      const Matrix w = random_matrix(dtype, n, k, 1), x = random_matrix(dtype, most, k, 2);
      Matrix all(dtype, most, n);
      Gemm one(isa, 1);
      const auto packed = one.pack(w.tensor, dtype);
      one.matmul(all.tensor, x.tensor, *packed, {});
      for (int threads : {1, 2, 3}) {
        cpu::set_num_threads(threads);
        Gemm gemm(isa, threads);
        for (int64_t m : {1, 2, 7, 9, 64, 130, 513})
          for (int64_t first : {int64_t{0}, (most - m) / 2, most - m}) {
            if (has_other_kernel && m < kFewestManyRows) continue;
            Matrix out(dtype, m, n);
            gemm.matmul(out.tensor, x.tensor.rows(first, m), *packed, {});
            ASSERT_EQ(
                std::memcmp(out.bytes.data(), all.tensor.rows(first, m).data, out.bytes.size()), 0)
                << isa_name(isa) << ", " << dtype_name(dtype) << ", " << threads
                << " threads, rows " << first << " to " << first + m;
          }
      }
    }
}

TEST(Gemm, StacksStridedPartsOfAnyFloatDtype) {
  for (Isa isa : isas())
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      Gemm gemm(isa, 2);
      const Matrix q = random_matrix(DType::kF32, 40, 72, 1, 80);
      const Matrix k = random_matrix(DType::kBF16, 9, 72, 2, 144);
      const Matrix v = random_matrix(DType::kF16, 20, 72, 3);
      const WeightRows parts[] = {q.tensor, k.tensor, v.tensor};
      // The weight is rounded to the model's dtype, and so is the reference.
      std::vector<Matrix> rounded;
      for (const Matrix* part : {&q, &k, &v}) {
        rounded.emplace_back(dtype, part->tensor.shape[0], 72);
        for (int64_t r = 0; r < part->tensor.shape[0]; ++r)
          for (int64_t c = 0; c < 72; ++c) rounded.back().set(r, c, part->at(r, c));
      }
      const Matrix x = random_matrix(dtype, 5, 72, 4);
      Matrix out(dtype, 5, 69);
      gemm.matmul(out.tensor, x.tensor, *gemm.pack(parts, dtype), {});
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " " << dtype_name(dtype));
      expect_gemm(out, x, {&rounded[0], &rounded[1], &rounded[2]}, nullptr);
    }
}

TEST(Gemm, Float16OfAllMagnitudesIsReadExactly) {
  // Subnormal and the largest float16 numbers: multiplied by 1, they yield the weight.
  const int64_t n = 0x7c00;
  Matrix w(DType::kF16, n, 1), one(DType::kF16, 1, 1);
  one.set(0, 0, 1);
  for (int64_t i = 0; i < n; ++i) w.tensor.as<uint16_t>()[i] = static_cast<uint16_t>(i);
  for (Isa isa : isas()) {
    Gemm gemm(isa, 1);
    Matrix out(DType::kF32, 1, n), half(DType::kF16, 1, n);
    const auto packed = gemm.pack(w.tensor, DType::kF16);
    gemm.matmul(out.tensor, one.tensor, *packed, {});
    gemm.matmul(half.tensor, one.tensor, *packed, {});
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(out.at(0, i), f16_to_f32(static_cast<uint16_t>(i))) << isa_name(isa);
      ASSERT_EQ(half.tensor.as<uint16_t>()[i], i) << isa_name(isa);
    }
  }
}

TEST(Gemm, RefusesOperandsThatDoNotFit) {
  Gemm gemm(best_isa(), 1);
  const Matrix w = random_matrix(DType::kF32, 8, 16, 1), x = random_matrix(DType::kF32, 2, 12, 2);
  Matrix out(DType::kF32, 2, 8);
  EXPECT_THROW(gemm.matmul(out.tensor, x.tensor, *gemm.pack(w.tensor, DType::kF32), {}),
               std::logic_error);
}

}  // namespace
}  // namespace nanovllm::cpu
