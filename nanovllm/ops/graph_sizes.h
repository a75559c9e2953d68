#pragma once

#include <cstdint>
#include <vector>

namespace nanovllm {

/// The most rows that are replayed. Larger decode batches are rare, and they run long enough to
/// hide the launches of kernels.
inline constexpr int64_t kMostGraphRows = 512;

/// The number of rows to which a decode step is padded for Backend::replay(): 1, 2, 4, 8 or a
/// multiple of 16, and not more than `most`.
int64_t padded_rows(int64_t num_rows, int64_t most);
/// All such numbers, in ascending order.
std::vector<int64_t> graph_sizes(int64_t most);

}  // namespace nanovllm
