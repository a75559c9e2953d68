#pragma once

#include <cstdint>
#include <limits>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/output.h"
#include "nanovllm/base/to_size.h"
#include "nanovllm/engine/sequence.h"
#include "nanovllm/ops/kv_cache.h"

namespace nanovllm {

/// The hash of a full block, computed from its token ids and the previous block's hash (for the
/// first block from the cache salt and a random number of the process).
using BlockHashFunction = uint64_t (*)(uint64_t previous, std::span<const int32_t> token_ids);
uint64_t block_hash(uint64_t previous, std::span<const int32_t> token_ids);

/// The pool of KV blocks: reference counts (`ownership.blocks`), the prefix cache, and a free list
/// in the order of last use, which begins with blocks that the cache does not know, since nothing
/// is lost with them. A free block keeps its hash and tokens until it is reused; a cache hit takes
/// it off the free list. Hits are exact (`cache.exact-hits`). Nobody outside can compute a hash, so
/// nobody can occupy the hash of another tenant's block to find out whether it is there.
///
/// Blocks are first used in the order of their ids, and only if the reuse of a free one would lose
/// cached contents. When `num_kept` were used, another one is only if all of these are in use: so
/// memory grows with what runs at the same time, not with the number of requests.
class BlockPool {
 public:
  BlockPool(int64_t num_blocks, int64_t block_size, bool enable_prefix_caching,
            BlockHashFunction hash = block_hash,
            int64_t num_kept = std::numeric_limits<int64_t>::max());
  BlockPool(BlockPool&&) = default;  // a copy's places would be those of the original
  BlockPool& operator=(BlockPool&&) = default;

  /// Finds the blocks of the longest cached prefix of the sequence's known tokens.
  void match_prefix(const Sequence& seq, std::vector<int32_t>& prefix) const;
  /// Fills the sequence's empty table with the prefix and new blocks, `num_blocks` in total.
  /// Returns false, and changes nothing, if too few are free.
  bool allocate(Sequence& seq, std::span<const int32_t> prefix, int64_t num_blocks);
  /// Adds new blocks to the table. Returns false, and adds none, if too few are free.
  bool append(Sequence& seq, int64_t num_blocks);
  /// Frees all blocks of the sequence; the last one will be reused first.
  void deallocate(Sequence& seq);
  /// Fills the child's empty table with the blocks of the parent's prompt. Full blocks are shared;
  /// a last one that is not full is copied. Returns false, and changes nothing, if none is free.
  bool fork(const Sequence& parent, Sequence& child, std::vector<BlockCopy>& copies);
  /// Registers the full blocks in the first `limit` tokens, which must be known and computed.
  void register_blocks(Sequence& seq, int64_t limit);
  /// Removes the sequence's blocks from the prefix cache, because their K and V may be wrong.
  void forget(const Sequence& seq);
  /// Empties the prefix cache; blocks in use stay with their sequences.
  void reset_prefix_cache();

  /// The block with its present contents.
  BlockRef ref(int32_t id) const { return {id, block(id).generation}; }
  /// Whether there is such a block, and it still has those contents.
  bool is_current(const BlockRef& b) const { return b.id >= 0 && ref(b.id) == b; }
  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t num_free() const { return std::ssize(free_) + num_blocks() - num_used_; }
  int64_t block_size() const { return block_size_; }
  bool has_prefix_cache() const { return enable_prefix_caching_; }
  const BlockStats& stats() const { return stats_; }

 private:
  friend struct BlockPoolState;
  struct Block {
    int64_t ref_count = 0;
    uint32_t generation = 0;
    std::list<int32_t>::iterator place;  // in free_ or in_use_
    std::optional<uint64_t> hash;        // set while registered
    BlockRef parent;
    CacheSalt salt;  // of first blocks; the others have the salt of their parents
    std::vector<int32_t> token_ids;
  };

  Block& block(int32_t id) { return blocks_[to_size(id)]; }
  const Block& block(int32_t id) const { return blocks_[to_size(id)]; }
  bool holds(const Block& b, const BlockRef& parent, const CacheSalt& salt,
             std::span<const int32_t> ids) const;
  uint64_t hash_before(const CacheSalt& salt) const;
  int32_t take_free();
  void share(int32_t id);
  void release(int32_t id);
  void forget(int32_t id);

  std::vector<Block> blocks_;
  int64_t block_size_;
  bool enable_prefix_caching_;
  BlockHashFunction hash_;
  uint64_t hash_key_;                             // random
  std::unordered_map<uint64_t, int32_t> cached_;  // hash -> the first block registered with it
  std::list<int32_t> free_;                       // the one that is reused next comes first
  std::list<int32_t> in_use_;
  int64_t num_kept_;
  int32_t num_used_ = 0;  // blocks with lower ids were used: each is in one of the lists
  BlockStats stats_;
};

}  // namespace nanovllm
