#include "nanovllm/ops/rows.h"

#include <algorithm>

#include "nanovllm/base/ceil_div.h"

namespace nanovllm {

Range share(int64_t total, int64_t unit, Rank rank) {
  const int64_t num_units = ceil_div(total, unit);
  const auto start = [&](int64_t r) { return std::min(total, num_units * r / rank.world * unit); };
  return {start(rank.index), start(rank.index + 1) - start(rank.index)};
}

}  // namespace nanovllm
