#pragma once

#include <span>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/engine/block_pool.h"

namespace nanovllm {

/// Has access to BlockPool's private members.
struct BlockPoolState {
  /// Throws std::logic_error unless all reference counts and the free list are right.
  static void validate(const BlockPool& pool, std::span<const Sequence* const> holders) {
    std::vector<int64_t> references(pool.blocks_.size(), 0);
    for (const Sequence* seq : holders)
      for (const int32_t id : seq->block_table) ++references[static_cast<size_t>(id)];
    int64_t num_used = 0;
    for (size_t i = 0; i < pool.blocks_.size(); ++i) {
      check(references[i] == pool.blocks_[i].ref_count, "block {}: {} references, counted {}", i,
            references[i], pool.blocks_[i].ref_count);
      num_used += references[i] > 0 ? 1 : 0;
    }
    for (const int32_t id : pool.free_)
      check(pool.block(id).ref_count == 0 && *pool.block(id).place == id,
            "free list is broken at block {}", id);
    check(std::ssize(pool.in_use_) == num_used && num_used + pool.num_free() == pool.num_blocks(),
          "{} listed as used, {} used, {} free", pool.in_use_.size(), num_used, pool.num_free());
    for (auto [hash, id] : pool.cached_)
      check(pool.block(id).hash == hash,
            "the cache has block {} under a hash that is not the block's", id);
  }
};

}  // namespace nanovllm
