#include "nanovllm/engine/batch_builder.h"

namespace nanovllm {

namespace {

SlotSetup setup_of(const Sequence& seq) {
  const SamplingParams& p = *seq.params;
  SlotSetup setup;
  setup.seed = seq.seed;
  setup.slot = seq.slot;
  setup.temperature = static_cast<float>(p.temperature);
  setup.top_p = static_cast<float>(p.top_p);
  setup.min_p = static_cast<float>(p.min_p);
  setup.top_k = p.top_k > 0 ? static_cast<int32_t>(p.top_k) : 0;
  setup.choice = seq.choice;
  setup.num_logprobs = static_cast<int32_t>(p.logprobs.value_or(-1));
  setup.num_prompt_logprobs = static_cast<int32_t>(p.prompt_logprobs.value_or(-1));
  if (p.min_tokens > 0) {
    setup.masked_before = static_cast<int32_t>(seq.num_prompt_tokens + p.min_tokens);
    setup.num_masked_ids = static_cast<int32_t>(seq.stop_ids->size());
  }
  return setup;
}

}  // namespace

StepInput BatchBuilder::build(const StepPlan& plan) {
  arrays_.clear();
  for (const Sequence* seq : plan.setups) {
    arrays_.setups.push_back(setup_of(*seq));
    if (arrays_.setups.back().num_masked_ids > 0)
      arrays_.masked_ids.insert(arrays_.masked_ids.end(), seq->stop_ids->begin(),
                                seq->stop_ids->end());
  }
  for (const ScheduledRow& row : plan.rows) {
    Sequence& seq = *row.seq;
    RowInput input;
    input.slot = seq.slot;
    input.start = static_cast<int32_t>(row.start);
    input.num_tokens = static_cast<int32_t>(row.num_tokens);
    input.store = row.store ? 1 : 0;
    const int64_t end = row.start + row.num_tokens;
    if (row.start < seq.num_prompt_tokens - 1 && seq.wants_prompt_logprobs()) {
      input.want_logprobs = 1;
      if (end < seq.num_prompt_tokens) input.next_token = seq.token_ids[static_cast<size_t>(end)];
    }
    arrays_.rows.push_back(input);
    for (int64_t i = row.start; i < end; ++i)
      arrays_.token_ids.push_back(i < seq.num_known() ? seq.token_ids[static_cast<size_t>(i)]
                                                      : kTokenInFlight);
    for (int64_t& i = seq.num_blocks_sent; i < static_cast<int64_t>(seq.block_table.size()); ++i)
      arrays_.block_updates.push_back(
          {seq.slot, static_cast<int32_t>(i), seq.block_table[static_cast<size_t>(i)]});
  }
  for (const ScheduledSample& sample : plan.samples)
    arrays_.samples.push_back({sample.seq->id, sample.seq->slot, static_cast<int32_t>(sample.row)});
  arrays_.copies = plan.copies;
  return arrays_.write(plan.step, buffer_);
}

}  // namespace nanovllm
