#include "nanovllm/base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace nanovllm {
namespace {

TEST(E4M3, HasTheValuesOfItsDefinition) {
  EXPECT_EQ(e4m3_to_f32(0x00), 0);
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_f32(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_f32(0x38), 1);
  EXPECT_EQ(e4m3_to_f32(0x7e), 448);
  EXPECT_EQ(e4m3_to_f32(0xb9), -1.125f);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0xff)));
}

TEST(E4M3, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code < 126; ++code) {
    const float low = e4m3_to_f32(static_cast<uint8_t>(code));
    const float high = e4m3_to_f32(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;  // exact
    for (const int sign : {1, -1}) {
      const auto expect = [&](float value, int nearest) {
        EXPECT_EQ(f32_to_e4m3(static_cast<float>(sign) * value), nearest + (sign < 0 ? 128 : 0))
            << value;
      };
      expect(low, code);
      expect(std::nextafter(middle, 0.0f), code);
      expect(middle, code + code % 2);
      expect(std::nextafter(middle, 1e9f), code + 1);
      expect(high, code + 1);
    }
  }
}

TEST(E4M3, ClampsWhatIsTooLarge) {
  EXPECT_EQ(f32_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(f32_to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 127, 127);
}

}  // namespace
}  // namespace nanovllm
