#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace nanovllm {

enum class DType : uint8_t { kF32, kBF16, kF16, kI64, kI32, kE4M3 };

/// The bytes of one element.
constexpr size_t dtype_size(DType dtype) {
  switch (dtype) {
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kE4M3:
      return 1;
  }
  return 0;
}

/// "float32", "bfloat16", "float16", ... as PyTorch names them.
const char* dtype_name(DType dtype);

/// The float dtype that PyTorch calls `name`, which may begin with "torch.". Throws UserError for
/// any other name.
DType parse_float_dtype(const std::string& name);

inline float bf16_to_f32(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

/// Rounds to nearest, ties to even. NaN stays NaN.
inline uint16_t f32_to_bf16(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// IEEE half precision without special instructions, for any x86-64; kernels use F16C if the
/// processor has it. f32_to_f16 rounds to nearest, ties to even.
float f16_to_f32(uint16_t x);
uint16_t f32_to_f16(float f);

/// 8-bit floats with 4 bits of exponent and 3 of mantissa, without infinities; the largest is 448.
/// f32_to_e4m3 rounds to nearest, ties to even, and larger numbers become 448. Source:
/// Micikevicius et al., "FP8 Formats for Deep Learning", 2022.
float e4m3_to_f32(uint8_t x);
inline uint8_t f32_to_e4m3(float f) {
  const auto bits_of = [](float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
  };
  const uint32_t sign = bits_of(f) >> 24 & 128;
  const float size = f < 0 ? -f : f;
  if (!(size < 448)) return static_cast<uint8_t>(sign | (size >= 448 ? 126 : 127));
  // Below 2^-6 all steps are 2^-9, which is the step of floats from 2^14 on.
  if (size < 0.015625f) return static_cast<uint8_t>(sign | (bits_of(size + 16384.0f) & 255));
  const uint32_t bits = bits_of(size);
  return static_cast<uint8_t>(sign | (((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3)));
}

}  // namespace nanovllm
