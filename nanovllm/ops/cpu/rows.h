#pragma once

#include <algorithm>
#include <cstdint>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

namespace nanovllm::cpu {

/// Runs row(i) for each of `count` rows of `elements` each. Sharing the work with other threads
/// costs about as much as 20,000 elements.
template <class Row>
void for_each_row(int64_t count, int64_t elements, Row row) {
  if (count * elements < 40'000) {
    for (int64_t i = 0; i < count; ++i) row(i);
    return;
  }
  const int64_t parts = std::min<int64_t>(count, 4 * num_threads());
  parallel_for(parts, [&](int64_t part, int) {
    for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) row(i);
  });
}

inline char* row_of(const Tensor& t, int64_t i) {
  return t.as<char>() + i * t.row_stride * static_cast<int64_t>(dtype_size(t.dtype));
}

}  // namespace nanovllm::cpu
