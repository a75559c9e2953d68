#pragma once

#include <algorithm>
#include <cstdint>

namespace nanovllm::cuda {

inline constexpr int kDecodeTile = 64;  // keys
/// That hold so many keys of a head.
constexpr int num_decode_tiles(int num_keys) { return (num_keys + kDecodeTile - 1) / kDecodeTile; }

/// Where the row of all heads' tiles is cut into pieces of decode attention, one for each block:
/// `num_blocks` of them have `num_tiles`. But a cut within `slack` of a head's end moves there:
/// merging the parts of a head costs more than pieces that differ by little, since blocks that are
/// not done share the whole bandwidth.
struct DecodeSplits {
  uint32_t num_tiles, num_blocks;
  int32_t slack;
  int32_t end;  ///< tiles without keys that count at a head's end, where sums are merged; <= slack

  /// `is_even`: heads differ by a tile with keys at most. Then pieces of one size often end with
  /// heads. Otherwise a head's end counts as a tile, and blocks get equal shares; with cuts that
  /// moved far these would differ.
  static constexpr DecodeSplits of(bool is_even) {
    return {.num_tiles = 0, .num_blocks = 1, .slack = 0, .end = is_even ? 0 : 1};
  }
  /// Of a head with so many keys.
  constexpr int tiles_of(int num_keys) const {
    return num_keys == 0 ? 0 : num_decode_tiles(num_keys) + end;
  }
  /// Once the length of the row is known. Pieces have two tiles with keys at least, since merging
  /// the parts of a head costs more than a tile; and more than twice the slack, lest cuts meet.
  constexpr void share_out(int row, int max_blocks) {
    const int pieces = std::max(1, std::min(max_blocks, row / (2 + end)));
    const int piece = (row + pieces - 1) / pieces;
    num_tiles = static_cast<uint32_t>(end == 0 ? piece : row);
    num_blocks = static_cast<uint32_t>(end == 0 ? 1 : pieces);
    slack = end == 0 ? piece / 8 : end;
  }
  /// Where a block's piece begins, before it moves; beyond the row where it has none.
  constexpr int position(int block) const {
    return static_cast<int>(uint64_t{num_tiles} * static_cast<uint32_t>(block) / num_blocks);
  }
  /// What a cut is moved by that lies `tile` tiles behind the begin of a head of `head_tiles`.
  constexpr int shift(int tile, int head_tiles) const {
    const int rest = head_tiles - tile;
    if (std::min(tile, rest) > slack) return 0;
    return tile <= rest ? -tile : rest;
  }
  /// The blocks that have parts of a head that is cut and whose tiles begin at `position`.
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
