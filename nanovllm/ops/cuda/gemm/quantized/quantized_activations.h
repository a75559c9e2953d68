#pragma once

#include <cstdint>

#include "nanovllm/ops/cuda/gemm/quantized/quantized_weight.h"

namespace nanovllm::cuda {

/// x [T, k] as E4M3 values [T, row_bytes] times scales: one for each row, or one for each
/// kQuantizedChunk columns of it, [chunks, scale_stride]. cuBLASLt needs a stride of T.
struct QuantizedActivations {
  void* values = nullptr;
  float* scales = nullptr;
  int64_t row_bytes = 0;
  int scale_stride = 0;
  bool has_chunks = false;

  bool operator==(const QuantizedActivations&) const = default;
};

}  // namespace nanovllm::cuda
