#include "nanovllm/ops/warmup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "nanovllm/ops/graph_sizes.h"

namespace nanovllm {
namespace {

TEST(GraphSizes, RowsArePaddedToFewSizes) {
  EXPECT_EQ(graph_sizes(40), (std::vector<int64_t>{1, 2, 4, 8, 16, 32, 40}));
  EXPECT_EQ(graph_sizes(3), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(graph_sizes(512).size(), 36u);
  for (const int64_t most : {1, 7, 8, 9, 100, 512}) {
    const std::vector<int64_t> sizes = graph_sizes(most);
    EXPECT_TRUE(std::ranges::is_sorted(sizes, std::less_equal())) << most;
    for (int64_t n = 1; n <= most; ++n) {
      EXPECT_GE(padded_rows(n, most), n);
      EXPECT_EQ(std::ranges::count(sizes, padded_rows(n, most)), 1) << n << " of " << most;
    }
  }
}

TEST(Warmup, StepsKeepTheLimitsOfRealOnes) {
  Step step;
  for (const auto& [max_seqs, max_len] :
       {std::pair<int64_t, int64_t>{512, 4096}, {1, 100}, {1, 4096}, {3, 1001}, {8, 16}, {100, 64}})
    for (const int64_t num_tokens : {1, 2, 3, 4, 8, 9, 99, 100, 101, 112, 128, 3000, 3001, 3003}) {
      if (num_tokens > max_seqs * max_len) continue;
      for (const bool equal : {false, true}) {
        step.clear();
        fill(step,
             {.num_tokens = num_tokens,
              .num_keys = 5000,
              .has_equal_keys = equal,
              .has_filters = true},
             max_seqs, max_len);
        EXPECT_LE(step.num_seqs(), max_seqs);
        // Up to max_seqs tokens the step decodes, so all GEMMs have as many rows.
        if (num_tokens <= max_seqs) {
          EXPECT_EQ(step.num_seqs(), num_tokens);
        }
        EXPECT_EQ(step.num_tokens(), num_tokens);
        ASSERT_EQ(step.outputs.size(), step.rows.size());
        EXPECT_EQ(step.samples.size(), step.rows.size());
        int64_t num_new = 0;
        for (size_t s = 0; s < step.rows.size(); ++s) {
          const StepRow& row = step.rows[s];
          EXPECT_EQ(row.store, 0);
          EXPECT_GE(row.num_tokens, 1);
          EXPECT_GE(row.start, 0);
          EXPECT_LE(row.start + row.num_tokens, max_len);
          num_new += row.num_tokens;
          // A row that wants log-probabilities needs a slot, where the drawn token is found.
          EXPECT_EQ(step.outputs[s].slot, 0);
          EXPECT_EQ(step.outputs[s].offset, row.num_tokens - 1);
        }
        EXPECT_EQ(num_new, num_tokens);
        EXPECT_EQ(step.samples[0].num_logprobs, 2);
      }
    }
}

TEST(Warmup, PaddingIsLikeThatOfARealStep) {
  Step step;
  fill(step, {.num_tokens = 5, .num_keys = 64, .num_padding = 2}, /*max_seqs=*/8, /*max_len=*/100);
  ASSERT_EQ(step.rows.size(), 5U);
  for (size_t s = 0; s < 5; ++s) {
    EXPECT_EQ(step.rows[s].slot, s < 3 ? 0 : -1) << s;
    EXPECT_EQ(step.rows[s].start, s < 3 ? 63 : 0) << s;
    EXPECT_EQ(step.outputs[s].slot, s < 3 ? 0 : -1) << s;
  }
}

}  // namespace
}  // namespace nanovllm
