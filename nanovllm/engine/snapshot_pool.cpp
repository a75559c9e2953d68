#include "nanovllm/engine/snapshot_pool.h"

#include <algorithm>

namespace nanovllm {

SnapshotPool::SnapshotPool(int64_t size) {
  for (int32_t number = 0; number < size; ++number)
    places_.push_back(order_.insert(order_.end(), Snapshot{{.number = number}}));
}

std::optional<SnapshotRef> SnapshotPool::take(int64_t depth, uint64_t step) {
  const auto oldest =
      std::ranges::find_if(order_, [&](const Snapshot& s) { return s.step != step; });
  if (oldest == order_.end()) return std::nullopt;
  *oldest = {{oldest->number, oldest->generation + 1, depth}, step};
  use(oldest->number);
  return *oldest;
}

void SnapshotPool::store(const SnapshotRef& ref, const BlockRef& block) {
  if (at(ref.number)->generation != ref.generation) return;
  if (find(block) != nullptr) return drop(ref);
  at(ref.number)->block = block;
  newest_[block.id] = ref.number;
}

const SnapshotPool::Snapshot* SnapshotPool::find(const BlockRef& block) const {
  const auto newest = newest_.find(block.id);
  if (newest == newest_.end() || at(newest->second)->block != block) return nullptr;
  return &*at(newest->second);
}

void SnapshotPool::drop(const SnapshotRef& ref) {
  if (ref.number >= 0 && at(ref.number)->generation == ref.generation)
    order_.splice(order_.begin(), order_, at(ref.number));
}

}  // namespace nanovllm
