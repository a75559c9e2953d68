#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <vector>

#include "goldens.h"

namespace nanovllm::testing {

/// The largest mean difference of log-probabilities, the least share of steps with the reference's
/// best token, and the largest difference of the reference's best two logits at which another token
/// may be the best. The defaults are those of transformers' own bfloat16 run of tiny-tales.
struct Bfloat16Limits {
  double mean = 0.0165, agreement = 0.988, gap = 0.3;
};

/// The rule for bfloat16: with the reference's tokens as input, a run keeps within the limits. It
/// prints what it compares with them.
inline void expect_close_in_bfloat16(LLM& llm, const std::vector<Json>& all_rows,
                                     const Bfloat16Limits& limits) {
  std::vector<Json> rows;
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& row : all_rows) {
    std::vector<int32_t> ids = row["prompt_token_ids"].get<std::vector<int32_t>>();
    if (ids.size() < 2) continue;
    for (const Json& id : row["greedy_token_ids"]) ids.push_back(id.get<int32_t>());
    prompts.push_back(ids);
    rows.push_back(row);
  }
  SamplingParams params = greedy();
  params.max_tokens = 1;
  params.prompt_logprobs = 1;
  const auto outputs = llm.generate(prompts, params, false);
  double sum = 0;
  int64_t num_tokens = 0, num_steps = 0, num_agree = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t prompt_len = rows[i]["prompt_token_ids"].size();
    for (size_t p = 1; p < prompts[i].size(); ++p) {
      const Logprob& entry = outputs[i].prompt_logprobs[p][0];
      const bool in_answer = p >= prompt_len;
      const Json& want =
          in_answer ? rows[i]["answer_logprobs"][p - prompt_len] : rows[i]["prompt_logprobs"][p];
      sum += std::abs(entry.logprob - want.get<double>());
      ++num_tokens;
      if (!in_answer) continue;
      ++num_steps;
      num_agree += entry.rank == 1 ? 1 : 0;
      const double gap = rows[i]["answer_gaps"][p - prompt_len].get<double>();
      EXPECT_TRUE(entry.rank == 1 || gap <= limits.gap) << rows[i]["id"] << " at " << p;
    }
  }
  const double mean = sum / static_cast<double>(num_tokens);
  std::cout << fmt::format("mean difference {:.5f}, best token agrees at {} of {} steps\n", mean,
                           num_agree, num_steps);
  EXPECT_LE(mean, limits.mean);
  EXPECT_GE(static_cast<double>(num_agree), limits.agreement * static_cast<double>(num_steps));
}

}  // namespace nanovllm::testing
