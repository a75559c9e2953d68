#pragma once

#include <algorithm>
#include <cstdint>

namespace nanovllm::cuda {

inline constexpr int kDecodeTile = 64;  // keys of a tile
/// The number of tiles of a head with this many keys.
constexpr int num_decode_tiles(int num_keys) { return (num_keys + kDecodeTile - 1) / kDecodeTile; }

/// Where the list of all heads' tiles (DecodePlan) is divided into ranges, one for each thread
/// block. Boundary b is at b * num_tiles / num_blocks, but a boundary within `slack` tiles of a
/// head's end moves to that end. Merging the partial results of a head costs more than ranges of
/// slightly different lengths, because the thread blocks that still run share the whole bandwidth.
struct DecodeSplits {
  uint32_t num_tiles, num_blocks;
  int32_t slack;
  /// A head's end counts as this many more tiles, the time that a merge takes; at most `slack`.
  int32_t merge_tiles;

  /// With `is_even`, which says that the numbers of tiles of any two heads differ by one at most,
  /// all ranges have the same number of tiles, and many end with a head. Without it the end of a
  /// head counts as one more tile, thread blocks get equal shares of the list, and boundaries move
  /// by one tile at most.
  static constexpr DecodeSplits of(bool is_even) {
    return {.num_tiles = 0, .num_blocks = 1, .slack = 0, .merge_tiles = is_even ? 0 : 1};
  }
  /// The number of tiles of a head with this many keys, as the list counts them.
  constexpr int tiles_of(int num_keys) const {
    return num_keys == 0 ? 0 : num_decode_tiles(num_keys) + merge_tiles;
  }
  /// Chooses the ranges of a list of this size. Ranges have at least two tiles with keys, because
  /// a merge costs more than a tile; and they are longer than twice the slack, so that no two
  /// boundaries meet.
  constexpr void divide(int list_size, int max_blocks) {
    const int ranges = std::max(1, std::min(max_blocks, list_size / (2 + merge_tiles)));
    const int range = (list_size + ranges - 1) / ranges;
    num_tiles = static_cast<uint32_t>(merge_tiles == 0 ? range : list_size);
    num_blocks = static_cast<uint32_t>(merge_tiles == 0 ? 1 : ranges);
    slack = merge_tiles == 0 ? range / 8 : merge_tiles;
  }
  /// Where a thread block's range begins before the boundary moves. It is behind the end of the
  /// list if the thread block has no range.
  constexpr int boundary(int block) const {
    return static_cast<int>(uint64_t{num_tiles} * static_cast<uint32_t>(block) / num_blocks);
  }
  /// How far a boundary moves that lies `tile` tiles behind the beginning of a head of
  /// `head_tiles`.
  constexpr int shift(int tile, int head_tiles) const {
    const int rest = head_tiles - tile;
    if (std::min(tile, rest) > slack) return 0;
    return tile <= rest ? -tile : rest;
  }
  /// The first and the last thread block that compute a split head, whose tiles begin at `position`
  /// of the list.
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
