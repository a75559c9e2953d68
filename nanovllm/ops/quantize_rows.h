#pragma once

#include "nanovllm/ops/weight_rows.h"

namespace nanovllm {

/// The matrix quantized by row, to E4M3 or to 8-bit integers: the largest element of a row becomes
/// the format's largest number. Its rows are read twice, for their scales and for their values.
WeightRows quantize_rows(const WeightRows& matrix, QuantizedFormat format);

}  // namespace nanovllm
