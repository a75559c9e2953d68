#pragma once

#include <span>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/engine/block_manager.h"

namespace nanovllm {

/// Has access to BlockManager's private members.
struct BlockManagerState {
  /// Throws std::logic_error unless all reference counts and the free list are right.
  static void validate(const BlockManager& manager, std::span<const Sequence* const> holders) {
    std::vector<int64_t> references(manager.blocks_.size(), 0);
    for (const Sequence* seq : holders)
      for (const int32_t id : seq->block_table) ++references[static_cast<size_t>(id)];
    int64_t num_used = 0;
    for (size_t i = 0; i < manager.blocks_.size(); ++i) {
      check(references[i] == manager.blocks_[i].ref_count, "block {}: {} references, counted {}", i,
            references[i], manager.blocks_[i].ref_count);
      num_used += references[i] > 0 ? 1 : 0;
    }
    int64_t num_listed = 0;
    for (int32_t id = manager.first_free_; id >= 0; id = manager.block(id).next, ++num_listed)
      check(manager.block(id).ref_count == 0 && num_listed < manager.num_blocks(),
            "free list is broken at block {}", id);
    num_listed += manager.num_blocks() - manager.num_used_;
    check(num_listed == manager.num_free_ && manager.num_free_ + num_used == manager.num_blocks(),
          "{} listed, {} free, {} used", num_listed, manager.num_free_, num_used);
    for (auto [hash, id] : manager.cached_)
      check(manager.block(id).hash == hash,
            "the cache has block {} under a hash that is not the block's", id);
  }
};

}  // namespace nanovllm
