#pragma once

#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/device/device.cuh"

// The tile scheduler of prefill_sm90.cu. A tile is some consecutive new tokens of one sequence, for
// one group of query heads. Its level is the number of key blocks that it sees, and so its cost.
// There is no list of tiles, which the host would have to make for each step. Instead every thread
// block computes the same order by itself from the lengths: all tiles of the highest level, then
// those of the next lower one, down to level 1. Expensive tiles come first, so that all thread
// blocks end at about the same time ("longest processing time first"). A thread block takes its
// next place in that order from a counter.
//
// The order is repeated for each section of KV heads. A section has as many KV heads as fit into
// the L2 cache, so that tiles that are computed at the same time find their keys there.
//
// A few new tokens that see many keys have too few tiles for all thread blocks. Then the keys of
// each tile are divided into parts (prefill_parts.cuh), which take consecutive places.
namespace nanovllm::cuda::prefill {

// Counters for all tiles; behind them is one for each part and warpgroup.
constexpr int kPrefillCounters = 2;
constexpr int most_parts(int num_blocks) { return 3 * num_blocks; }

constexpr int kMostParts = 32;        // that a tile is divided into
constexpr int kNotDivided = 1 << 24;  // more key blocks than any tile has
/// A part of a tile's keys: number `index` of `count` parts, whose results are stored from place
/// `first` on. It is one word, since the warpgroups have few registers.
struct Part {
  uint32_t count : 6 = 1, index : 6 = 0, first : 20 = 0;
};

/// What the warps of a thread block need to know of a tile.
struct Tile {
  int token;        ///< row of q and out of its first token
  int num_tokens;   ///< rows from there to the sequence's end; may be more than a tile has
  int first_limit;  ///< keys that its first token sees; each next one sees one more
  int context;      ///< keys of the sequence
  int first_block;  ///< the first key block that it reads
  int end_block;    ///< behind the last key block that it reads; 0 marks the end of the work
  int head_group;   ///< its group_heads query heads, which share a KV head
  int slot;         ///< row of block_tables
  Part part;        ///< which part of the tile's keys first_block and end_block delimit
};

struct PrefillParams {
  AttentionParams args;
  PrefillScratch scratch;
  int longest_part;      ///< the most key blocks of a part of a tile
  int group_heads;       ///< query heads of a tile: 2 where they can share a KV head, else 1
  int num_groups;        ///< num_heads / group_heads
  int kv_groups;         ///< head groups of a KV head
  int log2_tile_tokens;  ///< 128 rows are 64 tokens of 2 heads or 128 of 1
  int copy_keys;         ///< keys that always lie in one block of the cache: 16, 32, 64 or 128
  float scale_log2;      ///< scale * log2(e)
};

/// Finds tiles by their place in the order. One warp uses it; all its lanes call every function.
template <int kBlockKeys, int kHeadDim>
class TileScheduler {
 public:
  __device__ explicit TileScheduler(const PrefillParams& params) : params_(params) {
    int64_t num_keys = 0;
    for (int s = lane(); s < params.args.num_seqs; s += 32) {
      const Lengths l = lengths(s);
      max_level_ = max(max_level_, (l.context + kBlockKeys - 1) / kBlockKeys);
      num_keys += l.context;
    }
    num_keys = warp_sum(num_keys);
    max_level_ = __reduce_max_sync(kAllLanes, max_level_);

    constexpr int64_t kCacheBytes = 32 << 20;
    const int64_t head_bytes = max(num_keys, int64_t{1}) * kHeadDim * 4;
    const int num_kv_heads = params.args.layout.num_kv_heads;
    const int fit =
        static_cast<int>(min(max(kCacheBytes / head_bytes, int64_t{1}), int64_t{num_kv_heads}));
    const int num_sections = (num_kv_heads + fit - 1) / fit;
    section_groups_ = (num_kv_heads + num_sections - 1) / num_sections * params.kv_groups;
    enter_level(max_level_);
  }

  /// The tile, or part of one, at this place. Places must not decrease from call to call.
  __device__ Tile at(int place) {
    while (level_ > 0 && place >= level_place_ + num_places()) {
      level_place_ += num_places();
      if (level_parts_ > 1) level_part_ += num_places();
      if (next_level_ > 0) {
        enter_level(next_level_);
      } else {
        first_group_ += section_groups_;
        enter_level(first_group_ < params_.num_groups ? max_level_ : 0);
      }
    }
    Tile tile{};
    if (level_ == 0) return tile;
    const int groups = groups_in_section(), number = (place - level_place_) / level_parts_;
    const int rank = number / groups;  // among the level's tiles of a head group
    tile.head_group = first_group_ + number % groups;
    while (rank >= chunk_rank_ + chunk_tiles_) enter_chunk(chunk_first_ + 32);
    const int owner = __ffs(__ballot_sync(kAllLanes, rank < chunk_rank_ + own_until_)) - 1;
    const int offset = (own_below_ + rank - chunk_rank_ - (own_until_ - own_tiles_))
                       << params_.log2_tile_tokens;
    tile.token = __shfl_sync(kAllLanes, own_.token + offset, owner);
    tile.num_tokens = __shfl_sync(kAllLanes, own_.num_tokens - offset, owner);
    tile.first_limit = __shfl_sync(kAllLanes, own_.context - own_.num_tokens + offset + 1, owner);
    tile.context = __shfl_sync(kAllLanes, own_.context, owner);
    tile.slot = __shfl_sync(kAllLanes, own_.slot, owner);
    const int part = (place - level_place_) % level_parts_;
    tile.part = {.count = static_cast<uint32_t>(level_parts_),
                 .index = static_cast<uint32_t>(part),
                 .first = static_cast<uint32_t>(level_part_ + number * level_parts_)};
    tile.first_block = level_ * part / level_parts_;
    tile.end_block = level_ * (part + 1) / level_parts_;
    return tile;
  }

 private:
  struct Lengths {
    int token = 0;
    int num_tokens = 0;  ///< 0 for a sequence with one new token, which decode attention computes
    int context = 0;
    int slot = 0;
  };

  __device__ static int lane() { return threadIdx.x % 32; }

  __device__ int groups_in_section() const {
    return min(section_groups_, params_.num_groups - first_group_);
  }
  /// How many places in the order the present level has in the present section of KV heads.
  __device__ int num_places() const { return level_tiles_ * groups_in_section() * level_parts_; }

  __device__ Lengths lengths(int s) const {
    Lengths l;
    if (s >= params_.args.num_seqs) return l;
    l.token = __ldg(params_.args.cu_seqlens_q + s);
    l.num_tokens = __ldg(params_.args.cu_seqlens_q + s + 1) - l.token;
    l.context = __ldg(params_.args.context_lens + s);
    l.slot = __ldg(params_.args.seq_slots + s);
    if (l.num_tokens <= 1 || l.context <= 0) l = Lengths{};
    return l;
  }

  /// How many tiles of the sequence have at most this level; these are its first ones. All tiles
  /// but the last one have 2^log2_tile_tokens tokens.
  __device__ int tiles_up_to(const Lengths& l, int level) const {
    const int log2_tokens = params_.log2_tile_tokens;
    if (level * kBlockKeys >= l.context) {
      return (l.num_tokens + (1 << log2_tokens) - 1) >> log2_tokens;
    }
    return max(0, (level * kBlockKeys - l.context + l.num_tokens) >> log2_tokens);
  }

  __device__ void enter_level(int level) {
    level_ = level;
    if (level == 0) return;
    int tiles = 0;
    int next = 0;
    for (int s = lane(); s < params_.args.num_seqs; s += 32) {
      const Lengths l = lengths(s);
      const int below = tiles_up_to(l, level - 1);
      tiles += tiles_up_to(l, level) - below;
      // The level of the sequence's last tile below this level. The highest one of all sequences is
      // the next level.
      if (below > 0) {
        const int limit =
            min(l.context, l.context - l.num_tokens + (below << params_.log2_tile_tokens));
        next = max(next, (limit + kBlockKeys - 1) / kBlockKeys);
      }
    }
    level_tiles_ = __reduce_add_sync(kAllLanes, tiles);
    level_parts_ = (level + params_.longest_part - 1) / params_.longest_part;
    next_level_ = __reduce_max_sync(kAllLanes, next);
    chunk_rank_ = 0;
    chunk_tiles_ = 0;
    enter_chunk(0);
  }

  /// Counts the level's tiles of sequences first .. first + 31, one for each lane.
  __device__ void enter_chunk(int first) {
    chunk_rank_ += chunk_tiles_;
    chunk_first_ = first;
    own_ = lengths(first + lane());
    own_below_ = tiles_up_to(own_, level_ - 1);
    own_tiles_ = tiles_up_to(own_, level_) - own_below_;
    own_until_ = warp_inclusive_scan(own_tiles_);
    chunk_tiles_ = __shfl_sync(kAllLanes, own_until_, 31);
  }

  const PrefillParams& params_;
  int max_level_ = 0;
  int section_groups_ = 0;  ///< head groups of a section
  int first_group_ = 0;     ///< the first head group of the present section
  int level_ = 0;           ///< the current level; 0: there are no more tiles
  int level_place_ = 0;     ///< the place of the level's first tile
  int level_tiles_ = 0;     ///< the number of the level's tiles in one head group
  int level_parts_ = 1;     ///< the number of parts of each of its tiles
  int level_part_ = 0;      ///< the number of its first part, among all tiles that are divided
  int next_level_ = 0;      ///< the next lower level that has tiles
  // The sequences are visited in chunks of 32, one for each lane.
  int chunk_first_ = 0;  ///< the chunk's first sequence
  int chunk_rank_ = 0;   ///< the number of the level's tiles in earlier chunks
  int chunk_tiles_ = 0;  ///< the number of the level's tiles in this chunk
  Lengths own_;          ///< the lengths of this lane's sequence
  int own_below_ = 0;    ///< the number of its tiles of lower levels
  int own_tiles_ = 0;    ///< the number of its tiles of this level
  int own_until_ = 0;    ///< own_tiles_, added over this lane and all lower ones
};

}  // namespace nanovllm::cuda::prefill
