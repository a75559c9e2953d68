#pragma once

#include <optional>
#include <span>
#include <vector>

#include "nanovllm/ops/cuda/gemm/quantized/quantized_weight.h"
#include "nanovllm/ops/weight_rows.h"

namespace nanovllm::cuda {

/// How quantized parts that are stacked become one QuantizedWeight.
struct QuantizedPack {
  QuantizedWeight weight;  // without memory
  std::vector<uint32_t> scales;
  /// For each part its rows of QuantizedWeight::values, row_bytes() bytes each.
  std::vector<WeightRows> rows;
};

/// None if the kernels need the weight as floats: it is not quantized, its parts differ in their
/// format, its groups are not consecutive columns, or a size or a border does not fit.
std::optional<QuantizedPack> pack_quantized(std::span<const WeightRows> parts);

}  // namespace nanovllm::cuda
