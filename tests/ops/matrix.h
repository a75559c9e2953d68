#pragma once

#include <random>
#include <vector>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/cpu/machine/isa.h"

namespace nanovllm::cpu {

/// The instruction sets that this machine supports.
inline std::vector<Isa> isas() {
  std::vector<Isa> all;
  for (int isa = 0; isa < kNumIsas; ++isa)
    if (is_supported(static_cast<Isa>(isa))) all.push_back(static_cast<Isa>(isa));
  return all;
}

/// A matrix of a float dtype on the heap, and its elements as floats.
struct Matrix {
  std::vector<char> bytes;
  Tensor tensor;

  Matrix(DType dtype, int64_t rows, int64_t columns, int64_t row_stride = 0)
      : tensor(nullptr, dtype, rows, columns) {
    if (row_stride > 0) tensor.row_stride = row_stride;
    bytes.resize(static_cast<size_t>(rows * tensor.row_stride) * dtype_size(dtype));
    tensor.data = bytes.data();
  }
  Matrix(Matrix&&) = default;  // the elements keep their address
  float at(int64_t r, int64_t c) const {
    const int64_t i = r * tensor.row_stride + c;
    if (tensor.dtype == DType::kF32) return tensor.as<float>()[i];
    const uint16_t bits = tensor.as<uint16_t>()[i];
    return tensor.dtype == DType::kBF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
  void set(int64_t r, int64_t c, float value) {
    const int64_t i = r * tensor.row_stride + c;
    if (tensor.dtype == DType::kF32) tensor.as<float>()[i] = value;
    else
      tensor.as<uint16_t>()[i] =
          tensor.dtype == DType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
  }
};

inline Matrix random_matrix(DType dtype, int64_t rows, int64_t columns, unsigned seed,
                            int64_t row_stride = 0) {
  Matrix matrix(dtype, rows, columns, row_stride);
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) matrix.set(r, c, normal(generator));
  return matrix;
}

}  // namespace nanovllm::cpu
