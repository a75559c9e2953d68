#include "nanovllm/engine/block_pool.h"

#include <gtest/gtest.h>

#include "block_pool_check.h"

namespace nanovllm {
namespace {

uint64_t same_hash(uint64_t, std::span<const int32_t>) { return 42; }

Sequence make(std::vector<int32_t> tokens, const char* salt = nullptr) {
  Sequence seq;
  seq.num_prompt_tokens = static_cast<int64_t>(tokens.size());
  seq.token_ids = std::move(tokens);
  if (salt != nullptr) seq.cache_salt = std::make_shared<const std::string>(salt);
  return seq;
}

// Allocates blocks as the scheduler does. Returns the number of cached blocks.
int64_t admit(BlockPool& blocks, Sequence& seq) {
  std::vector<int32_t> prefix;
  blocks.match_prefix(seq, prefix);
  const int64_t num_blocks = (seq.num_known() + blocks.block_size() - 1) / blocks.block_size();
  if (!blocks.allocate(seq, prefix, num_blocks)) return -1;
  blocks.register_blocks(seq, seq.num_known());
  return static_cast<int64_t>(prefix.size());
}

TEST(BlockPool, SaltsAreComparedAsTexts) {
  BlockPool blocks(16, 2, true, same_hash);
  Sequence first = make({1, 2}, "tenant");
  EXPECT_EQ(admit(blocks, first), 0);
  for (const char* other : {static_cast<const char*>(nullptr), "tenan", "tenant2"}) {
    Sequence seq = make({1, 2}, other);
    EXPECT_EQ(admit(blocks, seq), 0);
  }
  Sequence same = make({1, 2}, "tenant");
  EXPECT_EQ(admit(blocks, same), 1);
}

TEST(BlockPool, HashesDifferInEachProcessAndEngine) {
  static std::vector<uint64_t> previous;
  const auto record = [](uint64_t before, std::span<const int32_t> ids) {
    previous.push_back(before);
    return block_hash(before, ids);
  };
  for (int i = 0; i < 2; ++i) {
    BlockPool blocks(4, 2, true, record);
    Sequence seq = make({1, 2}, "tenant");
    blocks.register_blocks(seq, 0);
    admit(blocks, seq);
  }
  EXPECT_NE(previous.front(), previous.back());
}

TEST(BlockPool, ReusedBlockLosesItsHash) {
  BlockPool blocks(2, 2, true);
  Sequence a = make({1, 2, 3, 4});
  EXPECT_EQ(admit(blocks, a), 0);
  blocks.deallocate(a);
  Sequence b = make({5, 6});
  EXPECT_EQ(admit(blocks, b), 0);  // takes the tail of a
  Sequence again = make({1, 2, 3, 4});
  std::vector<int32_t> prefix;
  blocks.match_prefix(again, prefix);
  EXPECT_EQ(prefix.size(), 1u);
  Sequence c = make({7, 8});
  EXPECT_EQ(admit(blocks, c), 0);
  blocks.match_prefix(again, prefix);
  EXPECT_TRUE(prefix.empty());
}

// With two blocks to keep, a third one is used only while both are in use.
TEST(BlockPool, UsesMoreBlocksThanItKeepsOnlyIfItMust) {
  BlockPool blocks(4, 2, true, block_hash, /*num_kept=*/2);
  const auto runs_alone = [&](int32_t token) {
    Sequence seq = make({token, token});
    admit(blocks, seq);
    const int32_t block = seq.block_table[0];
    blocks.deallocate(seq);
    return block;
  };
  EXPECT_EQ(runs_alone(1), 0);
  EXPECT_EQ(runs_alone(2), 1);
  EXPECT_EQ(runs_alone(1), 0);  // a hit
  EXPECT_EQ(runs_alone(3), 1);  // the oldest contents are replaced
  EXPECT_EQ(blocks.num_free(), 4);
  Sequence a = make({5, 5, 6, 6, 7, 7});
  admit(blocks, a);
  EXPECT_EQ(a.block_table, (std::vector<int32_t>{0, 1, 2}));
  blocks.deallocate(a);
  EXPECT_EQ(runs_alone(8), 2);  // all three are kept from then on, the tail of a is the oldest
  Sequence b = make({1, 1, 2, 2, 3, 3, 4, 4});
  EXPECT_EQ(admit(blocks, b), 0);
  EXPECT_EQ(b.block_table.back(), 3);
  EXPECT_EQ(blocks.num_free(), 0);
  BlockPoolState::validate(blocks, std::vector<const Sequence*>{&b});
}

// Blocks that no lookup can find are reused before new ones are taken and cached ones are lost.
TEST(BlockPool, ReusesBlocksThatAreNotCachedFirst) {
  BlockPool blocks(4, 2, true);
  Sequence a = make({1, 1, 2, 2, 3});
  admit(blocks, a);
  blocks.deallocate(a);
  Sequence b = make({4, 4, 5});
  EXPECT_EQ(admit(blocks, b), 0);
  EXPECT_EQ(b.block_table, (std::vector<int32_t>{2, 3}));
  blocks.deallocate(b);
  Sequence c = make({6});
  admit(blocks, c);
  EXPECT_EQ(c.block_table, (std::vector<int32_t>{3}));
  Sequence again = make({1, 1, 2, 2});
  EXPECT_EQ(admit(blocks, again), 2);
  BlockPoolState::validate(blocks, std::vector<const Sequence*>{&c, &again});
}

// Without a cache, sequences that follow each other use the same memory.
TEST(BlockPool, WithoutACacheTheLastFreedBlockIsReused) {
  BlockPool blocks(8, 2, false);
  for (int32_t token = 0; token < 3; ++token) {
    Sequence seq = make({token, token, token});
    admit(blocks, seq);
    EXPECT_EQ(seq.block_table, (std::vector<int32_t>{0, 1}));
    blocks.deallocate(seq);
  }
}

TEST(BlockPool, CountsBlocksThatChangeHands) {
  BlockPool blocks(8, 2, true);
  const auto counts = [&] {
    const BlockStats s = blocks.stats();
    return std::vector{s.blocks_taken, s.blocks_shared, s.blocks_freed};
  };
  Sequence a = make({1, 2, 3, 4, 5}), b = make({1, 2, 3, 4, 6});
  admit(blocks, a);
  EXPECT_EQ(counts(), (std::vector<int64_t>{3, 0, 0}));
  admit(blocks, b);
  EXPECT_EQ(counts(), (std::vector<int64_t>{4, 2, 0}));
  blocks.deallocate(a);
  EXPECT_EQ(counts(), (std::vector<int64_t>{4, 2, 1}));  // b holds the shared ones
  blocks.deallocate(b);
  EXPECT_EQ(counts(), (std::vector<int64_t>{4, 2, 4}));
}

TEST(BlockPool, HitOnAFreeBlockReducesTheFreeBlocks) {
  BlockPool blocks(3, 2, true);
  Sequence a = make({1, 2, 3, 4});
  admit(blocks, a);
  blocks.deallocate(a);
  EXPECT_EQ(blocks.num_free(), 3);
  Sequence held = make({9});
  admit(blocks, held);  // one of the three
  Sequence longer = make({1, 2, 5, 6, 7});
  std::vector<int32_t> prefix;
  blocks.match_prefix(longer, prefix);
  EXPECT_FALSE(
      blocks.allocate(longer, prefix, 3));  // a hit on a free block, and two new ones: 3 of 2
  Sequence again = make({1, 2, 3, 4});
  EXPECT_EQ(admit(blocks, again), 2);
  EXPECT_EQ(blocks.num_free(), 0);
}

TEST(BlockPool, CollidingHashesAreNotAHit) {
  BlockPool blocks(8, 2, true, same_hash);
  Sequence a = make({1, 2});
  EXPECT_EQ(admit(blocks, a), 0);
  Sequence other = make({3, 4});
  EXPECT_EQ(admit(blocks, other), 0);  // other tokens
  Sequence child = make({5, 6, 1, 2});
  EXPECT_EQ(admit(blocks, child), 0);  // other first block
  Sequence same = make({1, 2, 1, 2});
  EXPECT_EQ(admit(blocks, same), 1);  // the second block has the tokens of the first, but a parent
}

TEST(BlockPool, ReusedParentIsNotAParent) {
  // Block 1 is registered as the successor of block 0; then block 0 is reused for other tokens. The
  // hashes are equal, so only the generation of the parent shows that block 1 belongs to the former
  // contents of block 0.
  BlockPool blocks(2, 2, true, [](uint64_t, std::span<const int32_t> ids) -> uint64_t {
    return ids[0] == 3 ? 1 : 2;
  });
  Sequence a = make({1, 2, 3, 4});
  admit(blocks, a);
  Sequence holder = make({1, 2, 3, 4});
  EXPECT_EQ(admit(blocks, holder), 2);
  const int32_t second = holder.block_table[1];
  blocks.deallocate(a);
  std::vector<int32_t> table = std::exchange(holder.block_table, {holder.block_table[0]});
  blocks.deallocate(holder);  // the first block is free, the second one still held
  Sequence b = make({7, 8});
  EXPECT_EQ(admit(blocks, b), 0);
  EXPECT_EQ(b.block_table[0], table[0]);
  Sequence c = make({7, 8, 3, 4});
  std::vector<int32_t> prefix;
  blocks.match_prefix(c, prefix);
  EXPECT_EQ(prefix, std::vector<int32_t>{table[0]})
      << "block " << second << " belongs to another prefix";
}

TEST(BlockPool, LeastRecentlyUsedIsReusedFirstTailBeforeHead) {
  BlockPool blocks(4, 2, true);
  Sequence a = make({1, 2, 3, 4}), b = make({5, 6, 7, 8});
  admit(blocks, a);
  admit(blocks, b);
  const std::vector<int32_t> first = a.block_table, second = b.block_table;
  blocks.deallocate(a);
  blocks.deallocate(b);
  Sequence c = make({9, 9, 9, 8, 9, 7, 9, 6});
  admit(blocks, c);
  EXPECT_EQ(c.block_table, (std::vector<int32_t>{first[1], first[0], second[1], second[0]}));
}

TEST(BlockPool, FirstRegistrationOfAHashStays) {
  BlockPool blocks(4, 2, true);
  Sequence a = make({1, 2}), b = make({1, 2});
  std::vector<int32_t> none;
  blocks.allocate(a, none, 1);
  blocks.allocate(b, none, 1);
  blocks.register_blocks(a, 2);
  blocks.register_blocks(b, 2);
  blocks.deallocate(b);
  Sequence filler = make({3});  // one of the free blocks; b's comes last
  admit(blocks, filler);
  Sequence again = make({1, 2});
  std::vector<int32_t> prefix;
  blocks.match_prefix(again, prefix);
  ASSERT_EQ(prefix.size(), 1u);
  EXPECT_EQ(prefix[0], a.block_table[0]);
}

TEST(BlockPool, ResetEmptiesTheCache) {
  BlockPool blocks(4, 2, true);
  Sequence a = make({1, 2, 3, 4});
  admit(blocks, a);
  blocks.reset_prefix_cache();
  Sequence b = make({1, 2, 3, 4});
  EXPECT_EQ(admit(blocks, b), 0);
  const Sequence* holders[] = {&a, &b};
  BlockPoolState::validate(blocks, holders);
}

}  // namespace
}  // namespace nanovllm
