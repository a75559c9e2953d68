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

float f16_to_f32(uint16_t x) { return static_cast<float>(std::bit_cast<_Float16>(x)); }

uint16_t f32_to_f16(float f) { return std::bit_cast<uint16_t>(static_cast<_Float16>(f)); }

}  // namespace nanovllm
