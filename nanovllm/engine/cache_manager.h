#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "nanovllm/engine/block_pool.h"

namespace nanovllm {

/// A group of layers that are cached alike: attention layers have blocks of keys and values.
struct CacheSpec {
  enum class Kind { kBlocks };
  Kind kind = Kind::kBlocks;
  int64_t count = 0;                                       ///< of the group's blocks
  int64_t num_kept = std::numeric_limits<int64_t>::max();  ///< of the blocks: BlockPool
};

/// Where a sequence can resume, and from what.
struct CacheHit {
  int64_t length = 0;        ///< tokens that need not be computed
  BlockPool::Prefix prefix;  ///< the blocks of these tokens
};

/// Everything that is cached for the sequences: the scheduler speaks to the manager, and the
/// manager to a pool for each group of layers.
class CacheManager {
 public:
  /// There is one group of blocks.
  CacheManager(const std::vector<CacheSpec>& groups, int64_t block_size, bool enable_prefix_caching,
               BlockHashFunction hash = block_hash);

  /// Finds the longest cached prefix of the sequence's known tokens. There is none if the
  /// log-probabilities of its prompt are wanted.
  void match(const Sequence& seq, CacheHit& hit) const;
  /// Gives a sequence that has no blocks those of the hit, and new ones for `high` tokens in all.
  /// Returns false, and changes nothing, if too few are free.
  bool start(Sequence& seq, const CacheHit& hit, int64_t high);
  /// Gives the sequence blocks for `high` tokens. Returns false if too few are free.
  bool reserve(Sequence& seq, int64_t high);
  /// Makes the first `known` tokens a prefix that others can find. They must be known and computed.
  void commit(Sequence& seq, int64_t known) { blocks().register_blocks(seq, known); }
  /// Takes back everything from a sequence that stops running.
  void release(Sequence& seq) { blocks().deallocate(seq); }
  /// Gives the child the blocks of the parent's prompt: BlockPool::fork(). Returns false, and
  /// changes nothing, if no block is free for a copy.
  bool fork(const Sequence& parent, Sequence& child, std::vector<BlockCopy>& copies);
  /// Removes what was computed for the sequence from the cache, because it may be wrong.
  void forget(const Sequence& seq);
  /// Empties the prefix cache; sequences that run keep what they have.
  void reset_prefix_cache() { blocks().reset_prefix_cache(); }

  BlockPool& blocks() { return blocks_.front(); }
  const BlockPool& blocks() const { return blocks_.front(); }

 private:
  std::vector<BlockPool> blocks_;  // one for each group of blocks
};

}  // namespace nanovllm
