#include "nanovllm/base/dtype.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (int i = 0; i < 128; ++i) {
    const int exponent = i >> 3, mantissa = i & 7;
    // Without the implicit bit, the smallest exponent counts once more.
    const float value = i == 127 ? std::numeric_limits<float>::quiet_NaN()
                        : exponent == 0
                            ? std::ldexp(static_cast<float>(mantissa), -9)
                            : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    table[static_cast<size_t>(i)] = value;
    table[static_cast<size_t>(i + 128)] = -value;
  }
  return table;
}

const std::array<float, 256> kE4M3 = make_e4m3_table();

}  // namespace

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kI64:
      return "int64";
    case DType::kI32:
      return "int32";
    case DType::kE4M3:
      return "float8_e4m3fn";
  }
  return "unknown";
}

DType parse_float_dtype(const std::string& name) {
  const std::string bare = name.starts_with("torch.") ? name.substr(6) : name;
  if (bare == "float32" || bare == "float") return DType::kF32;
  if (bare == "bfloat16") return DType::kBF16;
  if (bare == "float16" || bare == "half") return DType::kF16;
  fail("dtype '{}' is not one of float32, bfloat16, float16", name);
}

float f16_to_f32(uint16_t x) { return static_cast<float>(std::bit_cast<_Float16>(x)); }

uint16_t f32_to_f16(float f) { return std::bit_cast<uint16_t>(static_cast<_Float16>(f)); }

float e4m3_to_f32(uint8_t x) { return kE4M3[x]; }

}  // namespace nanovllm
