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

TEST(Warmup, BatchesKeepTheLimitsOfRealSteps) {
  HostBatch batch;
  batch.processed_logprobs = true;
  for (const auto& [max_seqs, max_len] :
       {std::pair<int64_t, int64_t>{512, 4096}, {1, 100}, {1, 4096}, {3, 1001}, {8, 16}, {100, 64}})
    for (const int64_t num_tokens : {1, 2, 3, 4, 8, 9, 99, 100, 101, 112, 128, 3000, 3001, 3003}) {
      if (num_tokens > max_seqs * max_len) continue;
      for (const bool equal : {false, true}) {
        fill(batch,
             {.num_tokens = num_tokens,
              .num_keys = 5000,
              .has_equal_keys = equal,
              .has_filters = true},
             max_seqs, max_len);
        const size_t num_seqs = batch.context_lens.size();
        EXPECT_LE(static_cast<int64_t>(num_seqs), max_seqs);
        // Up to max_seqs tokens the step decodes, so all GEMMs have as many rows.
        if (num_tokens <= max_seqs) {
          EXPECT_EQ(static_cast<int64_t>(num_seqs), num_tokens);
        }
        EXPECT_EQ(static_cast<int64_t>(batch.input_ids.size()), num_tokens);
        EXPECT_EQ(batch.positions.size(), batch.input_ids.size());
        EXPECT_EQ(batch.slot_mapping, std::vector<int32_t>(batch.input_ids.size(), -1));
        ASSERT_EQ(batch.cu_seqlens_q.size(), num_seqs + 1);
        EXPECT_EQ(batch.cu_seqlens_q.back(), num_tokens);
        for (size_t s = 0; s < num_seqs; ++s) {
          const int32_t first = batch.cu_seqlens_q[s], end = batch.cu_seqlens_q[s + 1];
          EXPECT_LT(first, end);
          EXPECT_GE(batch.positions[static_cast<size_t>(first)], 0);
          EXPECT_EQ(batch.positions[static_cast<size_t>(end - 1)], batch.context_lens[s] - 1);
          EXPECT_LE(batch.context_lens[s], max_len);
        }
        // A row that wants log-probabilities needs a slot, where the drawn token is found.
        EXPECT_EQ(batch.samples.size(), num_seqs);
        EXPECT_EQ(batch.sample_slots, std::vector<int32_t>(num_seqs, 0));
        EXPECT_EQ(batch.samples[0].num_logprobs, 2);
      }
    }
  EXPECT_TRUE(batch.processed_logprobs);
}

TEST(Warmup, PaddingIsLikeThatOfARealStep) {
  HostBatch batch;
  fill(batch, {.num_tokens = 5, .num_keys = 64, .num_padding = 2}, /*max_seqs=*/8, /*max_len=*/100);
  EXPECT_EQ(batch.context_lens, (std::vector<int32_t>{64, 64, 64, 0, 0}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{63, 63, 63, 0, 0}));
  EXPECT_EQ(batch.cu_seqlens_q, (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
}

}  // namespace
}  // namespace nanovllm
