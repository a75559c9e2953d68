#pragma once

#include <algorithm>
#include <cstdint>

namespace nanovllm::cuda {

inline constexpr int kDecodeTile = 64;  // keys
/// Tiles that hold so many keys of a head.
constexpr int num_decode_tiles(int num_keys) { return (num_keys + kDecodeTile - 1) / kDecodeTile; }

/// Where the list of all heads' tiles is divided into ranges of decode attention, one for each
/// thread block. Boundary b lies at b * num_tiles / num_blocks, but a boundary within `slack` tiles
/// of a head's end moves there: merging the parts of a head costs more than ranges that differ by
/// little, since thread blocks that still run share the whole bandwidth.
struct DecodeSplits {
  uint32_t num_tiles, num_blocks;
  int32_t slack;
  int32_t merge_tiles;  ///< tiles without keys at a head's end, for the time of a merge; <= slack

  /// `is_even`: the heads' numbers of tiles differ by one at most. Then all ranges have the same
  /// number of tiles, and many end with a head. Otherwise a head's end counts as one tile more and
  /// thread blocks get equal shares of the list, from which boundaries move by one tile at most.
  static constexpr DecodeSplits of(bool is_even) {
    return {.num_tiles = 0, .num_blocks = 1, .slack = 0, .merge_tiles = is_even ? 0 : 1};
  }
  /// Tiles of a head with so many keys.
  constexpr int tiles_of(int num_keys) const {
    return num_keys == 0 ? 0 : num_decode_tiles(num_keys) + merge_tiles;
  }
  /// Called once the length of the list is known. Ranges have at least two tiles with keys, since
  /// merging the parts of a head costs more than a tile; and they are longer than twice the slack,
  /// so that no two boundaries meet.
  constexpr void divide(int list_size, int max_blocks) {
    const int ranges = std::max(1, std::min(max_blocks, list_size / (2 + merge_tiles)));
    const int range = (list_size + ranges - 1) / ranges;
    num_tiles = static_cast<uint32_t>(merge_tiles == 0 ? range : list_size);
    num_blocks = static_cast<uint32_t>(merge_tiles == 0 ? 1 : ranges);
    slack = merge_tiles == 0 ? range / 8 : merge_tiles;
  }
  /// Where a thread block's range begins before the boundary moves; beyond the list for a thread
  /// block that has none.
  constexpr int boundary(int block) const {
    return static_cast<int>(uint64_t{num_tiles} * static_cast<uint32_t>(block) / num_blocks);
  }
  /// By how much a boundary moves that lies `tile` tiles behind the begin of a head of
  /// `head_tiles`.
  constexpr int shift(int tile, int head_tiles) const {
    const int rest = head_tiles - tile;
    if (std::min(tile, rest) > slack) return 0;
    return tile <= rest ? -tile : rest;
  }
  /// The first and last thread block with a part of a head that is split and whose tiles begin at
  /// `position`.
  constexpr int first_block(int position) const { return block_at(position + slack); }
  constexpr int last_block(int position, int head_tiles) const {
    return block_at(position + head_tiles - slack - 1);
  }

 private:
  constexpr int block_at(int position) const {
    return static_cast<int>((uint64_t{num_blocks} * static_cast<uint32_t>(position + 1) - 1) /
                            num_tiles);
  }
};

}  // namespace nanovllm::cuda
