#include "nanovllm/ops/graph_sizes.h"

#include <algorithm>
#include <bit>

namespace nanovllm {

int64_t padded_rows(int64_t num_rows, int64_t most) {
  const int64_t size = num_rows <= 8
                           ? static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_rows)))
                           : (num_rows + 15) / 16 * 16;
  return std::min(size, most);
}

std::vector<int64_t> graph_sizes(int64_t most) {
  std::vector<int64_t> sizes;
  for (int64_t n = 1; n <= most; n = sizes.back() + 1) sizes.push_back(padded_rows(n, most));
  return sizes;
}

}  // namespace nanovllm
