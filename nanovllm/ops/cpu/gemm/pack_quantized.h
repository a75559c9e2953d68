#pragma once

#include <memory>
#include <span>

#include "nanovllm/ops/cpu/gemm/gemm.h"

namespace nanovllm::cpu {

/// Packs a weight, for Gemm::pack(), in panels of quantized values. Returns null if the kernels do
/// not support it: a part is not quantized, formats or orders of columns differ, a group of columns
/// ends where no group of x ends, or a value is NaN. Then the weight can be packed as floats.
std::shared_ptr<const PackedWeight> pack_quantized(std::span<const WeightRows> all_parts,
                                                   DType dtype, int64_t num_experts,
                                                   int64_t panel_columns, int threads);

/// row [k] = the elements of row i of a weight that pack_quantized() made.
void dequantize_row(float* row, const PackedWeight& w, int64_t i, int64_t panel_columns);

}  // namespace nanovllm::cpu
