#include "nanovllm/engine/cache_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace nanovllm {
namespace {

/// A cache of 32 blocks of 4 tokens and 8 snapshots, and what the scheduler does with it.
struct Caches {
  CacheManager cache = CacheManager(BlockPool(32, 4, true), 8);
  uint64_t step = 0;

  static Sequence make(std::vector<int32_t> tokens) {
    Sequence seq;
    seq.params = std::make_shared<const RequestParams>();
    seq.num_prompt_tokens = std::ssize(tokens);
    seq.token_ids = std::move(tokens);
    return seq;
  }
  static std::vector<int32_t> counting(int32_t length) {
    std::vector<int32_t> ids(static_cast<size_t>(length));
    std::iota(ids.begin(), ids.end(), 1);
    return ids;
  }

  CacheHit match(const Sequence& seq) {
    CacheHit hit;
    cache.match(seq, ++step, hit);
    return hit;
  }
  /// Computes the prompt. Returns where its rows end.
  std::vector<int64_t> compute(Sequence& seq) {
    const CacheHit hit = match(seq);
    EXPECT_TRUE(cache.start(seq, hit, seq.num_known()));
    seq.num_computed = hit.length;
    std::vector<int64_t> ends;
    while (seq.num_pending() > 0) {
      row(seq, cache.row_end(seq));
      ends.push_back(seq.num_computed);
    }
    return ends;
  }
  /// Draws a token and computes it.
  void decode(Sequence& seq, int32_t token) {
    seq.token_ids.push_back(token);
    cache.commit(seq, std::min(seq.num_computed, seq.num_known() - 1));
    EXPECT_TRUE(cache.reserve(seq, seq.num_tokens()));
    row(seq, seq.num_tokens());
  }
  std::vector<StateCopy> copies;
  void row(Sequence& seq, int64_t end) {
    ++step;
    seq.num_computed = end;
    cache.save_state(seq, step, copies);
    cache.commit(seq, std::min(end, std::max(seq.num_prompt_tokens, seq.num_known() - 1)));
  }
};

TEST(CacheManager, HitIsTheMinimumOverTheGroups) {  // cache.groups-agree
  Caches t;
  Sequence first = Caches::make(Caches::counting(11));
  EXPECT_EQ(t.compute(first), (std::vector<int64_t>{8, 11}));
  t.decode(first, 12);  // fills the third block; the host does not know yet what follows
  first.token_ids.push_back(13);
  t.cache.blocks().register_blocks(first, 12);
  const CacheHit hit = t.match(Caches::make(Caches::counting(16)));
  EXPECT_EQ(hit.branch, 12);
  EXPECT_EQ(hit.length, 8);
  EXPECT_EQ(hit.blocks,
            std::vector<int32_t>(first.block_table.begin(), first.block_table.begin() + 2));
  EXPECT_TRUE(hit.snapshot.has_value());
}

TEST(CacheManager, HitOfBlocksAloneIsAllOfThem) {
  Caches t;
  t.cache = CacheManager(BlockPool(32, 4, true));
  Sequence first = Caches::make(Caches::counting(12));
  EXPECT_EQ(t.compute(first), std::vector<int64_t>{12});
  const CacheHit hit = t.match(Caches::make(Caches::counting(12)));
  EXPECT_EQ(hit.length, 12);
  EXPECT_EQ(hit.blocks, first.block_table);
  EXPECT_FALSE(hit.snapshot.has_value());
}

TEST(CacheManager, StateIsUsableAtItsOwnDepthOnly) {
  Caches t;
  Sequence first = Caches::make(Caches::counting(21));
  EXPECT_EQ(t.compute(first), (std::vector<int64_t>{20, 21}));
  EXPECT_EQ(t.match(Caches::make(Caches::counting(30))).length, 20);
  const CacheHit shorter = t.match(Caches::make(Caches::counting(18)));
  EXPECT_EQ(shorter.length, 0);
  EXPECT_EQ(shorter.branch, 16);
  EXPECT_TRUE(shorter.blocks.empty());
}

TEST(CacheManager, CachedPromptStartsFromAStateBelowItsLastToken) {
  Caches t;
  for (const int32_t length : {12, 13, 15, 16}) {
    Sequence first = Caches::make(Caches::counting(length));
    t.compute(first);
    const CacheHit hit = t.match(Caches::make(Caches::counting(length)));
    EXPECT_EQ(hit.length, (length - 1) / 4 * 4) << length;
    EXPECT_TRUE(hit.snapshot.has_value());
  }
}

TEST(CacheManager, RowsEndWhereSnapshotsAreTaken) {
  Caches t;
  Sequence first = Caches::make(Caches::counting(22));
  EXPECT_EQ(t.compute(first), (std::vector<int64_t>{20, 22}));
  std::vector<int32_t> tokens = Caches::counting(22);
  tokens[10] = 99;
  Sequence branch = Caches::make(tokens);
  EXPECT_EQ(t.compute(branch), (std::vector<int64_t>{8, 20, 22}));
  tokens[13] = 99;
  Sequence third = Caches::make(tokens);  // resumes at 8 and begins to differ at 12
  EXPECT_EQ(t.compute(third), (std::vector<int64_t>{12, 20, 22}));
  Sequence one = Caches::make({7, 7, 7, 7});
  EXPECT_EQ(t.compute(one), std::vector<int64_t>{4});
}

TEST(CacheManager, StateOfAnAnswerReplacesTheOneBefore) {
  Caches t;
  t.cache = CacheManager(BlockPool(32, 4, true), 3);
  Sequence prompt = Caches::make(Caches::counting(6));
  t.compute(prompt);
  for (int32_t token = 7; token <= 30; ++token) t.decode(prompt, token);
  // Of 29 tokens the host knows what follows.
  EXPECT_EQ(t.match(Caches::make(Caches::counting(31))).length, 28);
  EXPECT_EQ(t.match(Caches::make(Caches::counting(7))).length, 4);
  EXPECT_TRUE(prompt.saved.empty());
}

TEST(CacheManager, StateOfAnAnswerIsFoundWhenTheNextTokenIsKnown) {
  Caches t;
  Sequence seq = Caches::make(Caches::counting(7));
  t.compute(seq);
  t.decode(seq, 8);
  EXPECT_EQ(t.match(Caches::make(Caches::counting(9))).length, 4);
  EXPECT_EQ(seq.saved.size(), 1u);
  seq.token_ids.push_back(9);
  t.cache.commit(seq, 8);
  EXPECT_EQ(t.match(Caches::make(Caches::counting(9))).length, 8);
  EXPECT_TRUE(seq.saved.empty());
}

TEST(CacheManager, StateThatThisStepSavesIsWorthAStep) {
  Caches t;
  Sequence first = Caches::make(Caches::counting(9)), second = Caches::make(Caches::counting(9));
  CacheHit hit = t.match(first);
  EXPECT_TRUE(t.cache.start(first, hit, 9));
  t.row(first, t.cache.row_end(first));
  t.cache.match(second, t.step, hit);
  EXPECT_TRUE(hit.grows);
  EXPECT_EQ(hit.length, 0);
  hit = t.match(second);
  EXPECT_FALSE(hit.grows);
  EXPECT_EQ(hit.length, 8);
}

TEST(CacheManager, StateIsNotFoundUnderReusedOrForgottenBlocks) {
  Caches t;
  Sequence first = Caches::make(Caches::counting(9));
  t.compute(first);
  t.cache.forget(first);
  EXPECT_EQ(t.match(Caches::make(Caches::counting(9))).length, 0);
  t.cache.release(first);

  Sequence again = Caches::make(Caches::counting(9));
  t.compute(again);
  t.cache.release(again);
  Sequence large = Caches::make(std::vector<int32_t>(4 * 32, 5));
  t.compute(large);  // takes all blocks
  t.cache.release(large);
  EXPECT_EQ(t.match(Caches::make(Caches::counting(9))).length, 0);
}

TEST(CacheManager, PromptWhoseLogprobsAreWantedIsComputed) {
  Caches t;
  Sequence first = Caches::make(Caches::counting(9)), second = Caches::make(Caches::counting(9));
  t.compute(first);
  RequestParams params;
  params.given.prompt_logprobs = 1;
  second.params = std::make_shared<const RequestParams>(params);
  EXPECT_EQ(t.compute(second), (std::vector<int64_t>{8, 9}));
}

// As after a step that returns several tokens.
TEST(CacheManager, StateIsFoundUnderItsOwnDepthIfMoreTokensBecomeKnown) {
  Caches t;
  Sequence seq = Caches::make(Caches::counting(7));
  t.compute(seq);
  for (int32_t token = 8; token <= 20; ++token) {
    seq.token_ids.push_back(token);
    EXPECT_TRUE(t.cache.reserve(seq, seq.num_tokens()));
    seq.num_computed = token;
    t.cache.save_state(seq, ++t.step, t.copies);
  }
  ASSERT_EQ(seq.saved.size(), 4u);
  seq.token_ids.push_back(21);
  t.cache.commit(seq, 17);
  for (const int32_t depth : {8, 12, 16}) {
    const CacheHit hit = t.match(Caches::make(Caches::counting(depth + 1)));
    EXPECT_EQ(hit.length, depth);
    const auto saved = std::ranges::find(t.copies, *hit.snapshot, &StateCopy::to);
    EXPECT_EQ(saved - t.copies.begin(), depth / 4 - 1);
  }
  EXPECT_EQ(seq.saved.size(), 1u);
  t.cache.release(seq);
  EXPECT_TRUE(seq.saved.empty());
}

TEST(CacheManager, StateThatWasHitIsReplacedLater) {
  Caches t;
  t.cache = CacheManager(BlockPool(32, 4, true), 2);
  Sequence hit = Caches::make(Caches::counting(9)), other = Caches::make({8, 8, 8, 8, 8});
  t.compute(hit);
  t.compute(other);
  Sequence again = Caches::make(Caches::counting(9)), last = Caches::make({7, 7, 7, 7, 7});
  EXPECT_EQ(t.compute(again), std::vector<int64_t>{9});
  t.compute(last);
  EXPECT_EQ(t.match(Caches::make(Caches::counting(9))).length, 8);
  EXPECT_EQ(t.match(Caches::make({8, 8, 8, 8, 8})).length, 0);
}

TEST(CacheManager, StateThatNobodyCouldFindYetIsReplacedNext) {
  Caches t;
  Sequence seq = Caches::make(Caches::counting(7)), other = Caches::make({8, 8, 8, 8, 8});
  t.compute(seq);
  t.decode(seq, 8);
  const int32_t unfound = t.copies.back().to;
  t.cache.release(seq);
  t.compute(other);
  EXPECT_EQ(t.copies.back().to, unfound);
}

// The state may be as wrong as the logits, even if it is found under blocks that are right.
TEST(CacheManager, StateOfAForgottenSequenceIsNotFoundUnderBlocksOfAnother) {
  Caches t;
  t.cache = CacheManager(BlockPool(32, 4, true), 1);
  Sequence right = Caches::make(Caches::counting(9)), other = Caches::make({9, 9, 9, 9, 9});
  t.compute(right);
  t.compute(other);  // replaces the only state
  Sequence wrong = Caches::make(Caches::counting(9));
  EXPECT_EQ(t.compute(wrong), (std::vector<int64_t>{8, 9}));
  EXPECT_EQ(t.match(Caches::make(Caches::counting(9))).length, 8);
  t.cache.forget(wrong);
  EXPECT_EQ(t.match(Caches::make(Caches::counting(9))).length, 0);
}

TEST(CacheManager, WithoutAPrefixCacheNoStateIsSaved) {
  Caches t;
  t.cache = CacheManager(BlockPool(32, 4, false), 8);
  Sequence seq = Caches::make(Caches::counting(9));
  EXPECT_EQ(t.compute(seq), std::vector<int64_t>{9});
  EXPECT_TRUE(t.copies.empty());
  EXPECT_TRUE(t.cache.has_states());
}

}  // namespace
}  // namespace nanovllm
