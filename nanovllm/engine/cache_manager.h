#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/engine/block_pool.h"
#include "nanovllm/engine/snapshot_pool.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// Where a sequence can resume, and from what.
struct CacheHit {
  int64_t length = 0;               ///< tokens that need not be computed
  std::vector<int32_t> blocks;      ///< of these tokens
  std::optional<int32_t> snapshot;  ///< the state after them, if the model has one
  int64_t branch = 0;               ///< how many tokens have blocks; prompts begin to differ there
  bool grows = false;  ///< later steps can resume further on, from a state that this step saves
};

/// What is cached, for the scheduler. Layers that are cached alike are a group, which has a pool:
/// attention layers have blocks of keys and values. Recurrent layers, if the model has some, have a
/// state, one value for a whole prefix, of which snapshots are kept. The hashes of blocks name
/// prefixes for both.
///
/// States are saved at borders between blocks: at the last one below the end of a prompt, where a
/// prompt begins to differ from others, and at each one in an answer, where it replaces the one
/// before. A row changes the state by all of its tokens, so it must end where a state is saved.
class CacheManager {
 public:
  /// Without a number of snapshots the model has no recurrent layers.
  explicit CacheManager(BlockPool blocks, std::optional<int64_t> num_snapshots = std::nullopt)
      : blocks_(std::move(blocks)) {
    if (num_snapshots) states_.emplace(blocks_.has_prefix_cache() ? *num_snapshots : 0);
  }

  /// Finds the longest prefix of the sequence's known tokens from which all groups can resume in
  /// `step` (`cache.groups-agree`): none if the log-probabilities of its prompt are wanted.
  void match(const Sequence& seq, uint64_t step, CacheHit& hit) const;
  /// Gives a sequence without blocks those of the hit, and new ones, so that it has room for `high`
  /// tokens. Returns false, and changes nothing, if too few are free.
  bool start(Sequence& seq, const CacheHit& hit, int64_t high);
  /// Gives the sequence room for `high` tokens, if enough blocks are free.
  bool reserve(Sequence& seq, int64_t high) {
    return blocks_.append(seq, ceil_div(high, blocks_.block_size()) - std::ssize(seq.block_table));
  }
  /// Where the next row of the sequence must end at the latest.
  int64_t row_end(const Sequence& seq) const;
  /// Saves the state after the sequence's row in `step`, if others may resume from it.
  void save_state(Sequence& seq, uint64_t step, std::vector<StateCopy>& copies);
  /// Lets others find the first `known` tokens, which must be known and computed.
  void commit(Sequence& seq, int64_t known);
  /// Takes everything back from a sequence that stops running.
  void release(Sequence& seq);
  /// Removes from the cache what was computed for the sequence, because it may be wrong.
  void forget(const Sequence& seq);
  /// Empties the prefix cache; sequences that run keep what they have.
  void reset_prefix_cache() { blocks_.reset_prefix_cache(); }

  bool has_states() const { return states_.has_value(); }
  BlockPool& blocks() { return blocks_; }
  const BlockPool& blocks() const { return blocks_; }

 private:
  BlockPool blocks_;
  std::optional<SnapshotPool> states_;
};

}  // namespace nanovllm
