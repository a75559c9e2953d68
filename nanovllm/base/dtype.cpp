#include "nanovllm/base/dtype.h"

#include <bit>

#include "nanovllm/base/check.h"

namespace nanovllm {

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

float f16_to_f32(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t exponent = (x >> 10) & 31;
  const uint32_t mantissa = x & 0x3ff;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}

uint16_t f32_to_f16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65,520 and above round to infinity
  if (magnitude < 0x38800000) {                       // below 2^-14: subnormal, in units of 2^-24
    const float units = std::bit_cast<float>(magnitude) * 0x1p24f;
    auto n = static_cast<uint32_t>(units);
    const float rest = units - static_cast<float>(n);
    if (rest > 0.5f || (rest == 0.5f && (n & 1) != 0)) ++n;
    return static_cast<uint16_t>(sign | n);
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13));
}

}  // namespace nanovllm
