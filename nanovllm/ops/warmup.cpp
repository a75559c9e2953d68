#include "nanovllm/ops/warmup.h"

#include <algorithm>

#include "nanovllm/base/ceil_div.h"

namespace nanovllm {

namespace {

/// Longer prompts make attention slower and nothing else.
constexpr int64_t kPromptTokens = 1024;

}  // namespace

void fill(HostBatch& batch, const WarmupStep& step, int64_t max_seqs, int64_t max_len) {
  const bool decodes = step.num_tokens <= max_seqs;
  const int64_t most_tokens = std::min(kPromptTokens, max_len);
  const int64_t num_seqs =
      decodes ? step.num_tokens : std::min(max_seqs, ceil_div(step.num_tokens, most_tokens));
  for (std::vector<int32_t>* array :
       {&batch.input_ids, &batch.positions, &batch.slot_mapping, &batch.context_lens,
        &batch.seq_slots, &batch.sample_rows, &batch.sample_slots})
    array->clear();
  batch.samples.clear();
  batch.block_updates.clear();
  batch.cu_seqlens_q.assign(1, 0);
  for (int64_t s = 0; s < num_seqs; ++s) {
    const int64_t first = step.num_tokens * s / num_seqs;
    const int64_t num_new = step.num_tokens * (s + 1) / num_seqs - first;
    const bool is_padding = s >= num_seqs - step.num_padding;
    const int64_t num_keys = is_padding                      ? 0
                             : !decodes                      ? num_new
                             : s == 0 || step.has_equal_keys ? std::min(step.num_keys, max_len)
                                                             : 1;
    for (int64_t i = 0; i < num_new; ++i) {
      batch.input_ids.push_back(0);
      batch.positions.push_back(static_cast<int32_t>(is_padding ? 0 : num_keys - num_new + i));
      batch.slot_mapping.push_back(-1);
    }
    batch.cu_seqlens_q.push_back(static_cast<int32_t>(batch.input_ids.size()));
    batch.context_lens.push_back(static_cast<int32_t>(num_keys));
    batch.seq_slots.push_back(0);
    batch.sample_rows.push_back(batch.cu_seqlens_q.back() - 1);
    batch.sample_slots.push_back(0);
    batch.samples.emplace_back();
  }
  if (!step.has_filters) return;
  batch.samples[0].top_k = 2;
  batch.samples[0].top_p = 0.9f;
  batch.samples[0].num_logprobs = 2;
}

}  // namespace nanovllm
