#pragma once

#include <cstdint>

namespace nanovllm::cuda {

/// Columns of a quantized weight that its kernels process together. Rows are padded to a multiple.
inline constexpr int kQuantizedChunk = 128;

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
