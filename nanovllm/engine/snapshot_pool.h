#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/to_size.h"
#include "nanovllm/engine/sequence.h"

namespace nanovllm {

/// The snapshots of recurrent states, in the order of their last use. A snapshot is found under the
/// last block of its prefix with the contents that the block had (`cache.exact-hits`). Every rank
/// runs the steps in order, and a step restores states before it saves others. So a snapshot may be
/// replaced although a step that is submitted or planned still restores or saves it; only two
/// states of one step need two snapshots.
class SnapshotPool {
 public:
  struct Snapshot : SnapshotRef {
    uint64_t step = 0;    ///< that saves it; only later ones can restore it
    BlockRef block = {};  ///< under which it is found
  };

  explicit SnapshotPool(int64_t size);
  SnapshotPool(SnapshotPool&&) = default;  // a copy's places would be those of the original
  SnapshotPool& operator=(SnapshotPool&&) = default;

  /// Replaces the snapshot that was used least recently by a state that `step` saves, which cannot
  /// be found yet. Returns none if the step has replaced all of them.
  std::optional<SnapshotRef> take(int64_t depth, uint64_t step);
  /// From now on the state is found under the block, unless that has one or the state was replaced.
  void store(const SnapshotRef& ref, const BlockRef& block);
  /// Null if there is none.
  const Snapshot* find(const BlockRef& block) const;
  /// The snapshot will be replaced after all others.
  void use(int32_t number) { order_.splice(order_.end(), order_, at(number)); }
  /// The snapshot will be replaced next. It is found until then.
  void drop(const SnapshotRef& ref);

  int64_t size() const { return std::ssize(order_); }

 private:
  std::list<Snapshot>::iterator at(int32_t number) const { return places_[to_size(number)]; }

  std::list<Snapshot> order_;                          // the one that is replaced next comes first
  std::vector<std::list<Snapshot>::iterator> places_;  // by number
  std::unordered_map<int32_t, int32_t> newest_;        // block -> the last one stored under it
};

}  // namespace nanovllm
