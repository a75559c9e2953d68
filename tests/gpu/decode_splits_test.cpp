#include "nanovllm/ops/cuda/attention/decode/decode_splits.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace nanovllm::cuda {
namespace {

/// The list of the tiles of all heads.
struct TileList {
  DecodeSplits splits;
  std::vector<int> heads;   // the number of tiles of each head
  std::vector<int> begins;  // the first tile of each head; the last entry is the list's length

  TileList(const std::vector<int>& num_keys, int kv_heads, bool is_even, int max_blocks)
      : splits(DecodeSplits::of(is_even)), begins{0} {
    for (const int keys : num_keys)
      if (keys > 0) heads.insert(heads.end(), static_cast<size_t>(kv_heads), splits.tiles_of(keys));
    for (const int tiles : heads) begins.push_back(begins.back() + tiles);
    splits.divide(begins.back(), max_blocks);
  }
  size_t head_at(int position) const {
    return static_cast<size_t>(std::ranges::upper_bound(begins, position) - begins.begin()) - 1;
  }
  /// The begin of a thread block's range, as begin_step computes it.
  int start(int block) const {
    const int position = std::min(splits.boundary(block), begins.back());
    if (position == begins.back()) return position;
    const size_t head = head_at(position);
    return position + splits.shift(position - begins[head], heads[head]);
  }
};

TEST(DecodeSplits, EveryTileIsInOneRange) {
  std::mt19937 random(1);
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  int num_cut = 0, num_moved = 0;
  for (int run = 0; run < 2000; ++run) {
    const bool is_even = run % 3 == 0;
    const int longest = std::vector{10, 100, 700, 8000}[static_cast<size_t>(below(4))];
    std::vector<int> num_keys(static_cast<size_t>(1 + below(run % 2 == 0 ? 8 : 260)));
    const int least = 1 + below(longest);
    for (int& keys : num_keys) keys = is_even ? least + below(kDecodeTile) : below(longest + 1);
    const int max_blocks = 1 + below(264);
    const TileList list(num_keys, 1 + below(8), is_even, max_blocks);
    SCOPED_TRACE(testing::Message() << "run " << run);
    ASSERT_EQ(list.start(0), 0);
    ASSERT_EQ(list.start(max_blocks), list.begins.back());
    std::map<size_t, std::vector<int>> parts;  // the thread blocks of each head that is split
    for (int block = 0; block < max_blocks; ++block) {
      const int end = list.start(block + 1);
      ASSERT_LE(list.start(block), end) << "block " << block;
      num_moved += list.start(block) < list.begins.back() &&
                   list.start(block) != list.splits.boundary(block);
      for (int position = list.start(block); position < end;) {
        const size_t head = list.head_at(position);
        const int tile = position - list.begins[head];
        ASSERT_LT(tile, list.heads[head] - list.splits.merge_tiles)
            << "a range without keys of a head";
        const int count = std::min(list.heads[head] - tile, end - position);
        if (count < list.heads[head]) parts[head].push_back(block);
        position += count;
      }
    }
    for (const auto& [head, blocks] : parts) {
      std::vector<int> expected(blocks.size());
      std::iota(expected.begin(), expected.end(), list.splits.first_block(list.begins[head]));
      EXPECT_EQ(blocks, expected) << "head " << head;
      EXPECT_EQ(blocks.back(), list.splits.last_block(list.begins[head], list.heads[head]));
      ++num_cut;
    }
  }
  EXPECT_GT(num_cut, 1000);
  EXPECT_GT(num_moved, 1000);
}

TEST(DecodeSplits, RangesEndAtHeadsOfEqualLength) {
  // 64 sequences of 640 keys and 8 KV heads: two heads for each of 256 thread blocks.
  const TileList list(std::vector(64, 640), 8, true, 264);
  for (int block = 0; block <= 256; ++block) EXPECT_EQ(list.start(block), 20 * block);
  EXPECT_EQ(list.start(257), list.begins.back());
}

TEST(DecodeSplits, RangesDifferByAtMostOneTile) {
  const TileList list({100, 3000, 500, 8192, 17}, 8, false, 264);
  for (int block = 0; block < 264; ++block) {
    const int share = list.splits.boundary(block + 1) - list.splits.boundary(block);
    EXPECT_EQ(share, list.begins.back() / 264 + (share - list.begins.back() / 264 > 0));
  }
  EXPECT_EQ(list.splits.boundary(264), list.begins.back());
}

TEST(DecodeSplits, NoOverflowWithTwoBillionTiles) {
  DecodeSplits splits = DecodeSplits::of(false);
  splits.divide(2'000'000'000, 264);
  EXPECT_EQ(splits.boundary(264), 2'000'000'000);
  EXPECT_EQ(splits.first_block(splits.boundary(200)), 200);
}

}  // namespace
}  // namespace nanovllm::cuda
