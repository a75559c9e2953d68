#pragma once

#include <cstdint>

namespace nanovllm::cuda {

/// Columns of a quantized weight that its kernels process together (a chunk). Rows are padded to a
/// multiple of it.
inline constexpr int kQuantizedChunk = 128;

/// x [T, k] as E4M3 values [T, row_bytes] times scales. There is a scale for each row, or, if
/// has_chunks, for each kQuantizedChunk columns of a row, [chunks, scale_stride]. cuBLASLt needs a
/// stride of T.
struct QuantizedActivations {
  void* values = nullptr;
  float* scales = nullptr;
  int64_t row_bytes = 0;
  int scale_stride = 0;
  bool has_chunks = false;

  bool operator==(const QuantizedActivations&) const = default;
};

}  // namespace nanovllm::cuda
