#include "nanovllm/ops/warmup.h"

#include <algorithm>

#include "nanovllm/base/ceil_div.h"

namespace nanovllm {

namespace {

/// Longer prompts make attention slower and nothing else.
constexpr int64_t kPromptTokens = 1024;

}  // namespace

void fill(Step& step, const WarmupStep& warmup, int64_t max_seqs, int64_t max_len) {
  const bool decodes = warmup.num_tokens <= max_seqs;
  const int64_t most_tokens = std::min(kPromptTokens, max_len);
  const int64_t num_seqs =
      decodes ? warmup.num_tokens : std::min(max_seqs, ceil_div(warmup.num_tokens, most_tokens));
  for (int64_t s = 0; s < num_seqs - warmup.num_padding; ++s) {
    const int64_t first = warmup.num_tokens * s / num_seqs;
    const int64_t num_new = warmup.num_tokens * (s + 1) / num_seqs - first;
    const bool is_long = s == 0 || warmup.has_equal_keys;
    const int64_t num_keys = !decodes ? num_new : is_long ? std::min(warmup.num_keys, max_len) : 1;
    step.token_ids.resize(static_cast<size_t>(first + num_new), 0);
    step.rows.push_back({.slot = 0,
                         .start = static_cast<int32_t>(num_keys - num_new),
                         .num_tokens = static_cast<int32_t>(num_new),
                         .store = 0});
    step.outputs.push_back(
        {.row = static_cast<int32_t>(s), .offset = static_cast<int32_t>(num_new) - 1, .slot = 0});
    step.samples.emplace_back();
  }
  if (decodes) step.pad(num_seqs);
  if (!warmup.has_filters) return;
  step.samples[0].top_k = 2;
  step.samples[0].top_p = 0.9f;
  step.samples[0].num_logprobs = 2;
}

}  // namespace nanovllm
