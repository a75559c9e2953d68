#include "nanovllm/ops/quantize_rows.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/ops/matrix.h"

namespace nanovllm {
namespace {

TEST(QuantizeRows, IsWithinHalfAStepOfEachElement) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    for (QuantizedFormat format : {QuantizedFormat::kInt8, QuantizedFormat::kE4M3}) {
      cpu::Matrix w = cpu::random_matrix(dtype, 37, 70, 1, 75);
      for (int64_t c = 0; c < 70; ++c) {
        w.set(3, c, 0);
        w.set(4, c, w.at(4, c) * 1e-3f);
      }
      const WeightRows rows = quantize_rows(w.tensor, format);
      ASSERT_EQ(rows.quantized().matrix->format, format);
      cpu::Matrix out(DType::kF32, 37, 70), part(DType::kF32, 5, 9);
      rows.read(0, 37, out.tensor.data);
      rows.part({30, 5}, {11, 9}).read(0, 5, part.tensor.data);
      for (int64_t r = 0; r < 37; ++r) {
        float most = 0;
        for (int64_t c = 0; c < 70; ++c) most = std::max(most, std::fabs(w.at(r, c)));
        for (int64_t c = 0; c < 70; ++c) {
          const float x = w.at(r, c);
          // E4M3 has eight steps between powers of two, and equal steps below 2^-6 of 448.
          const float step = format == QuantizedFormat::kInt8
                                 ? most / 127
                                 : std::max(std::fabs(x) / 8, most / 448 * 0x1p-9f);
          EXPECT_NEAR(out.at(r, c), x, 0.5001f * step) << dtype_name(dtype) << " " << r << " " << c;
          if (std::fabs(x) == most) {
            EXPECT_FLOAT_EQ(out.at(r, c), x);
          }
        }
      }
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t c = 0; c < 9; ++c) EXPECT_EQ(part.at(r, c), out.at(30 + r, 11 + c));
    }
}

}  // namespace
}  // namespace nanovllm
