#include "nanovllm/engine/batch_builder.h"

namespace nanovllm {

namespace {

/// Appends `list` and counts it.
template <class To, class From>
void add_list(std::vector<To>& to, int32_t& count, const From& list) {
  to.insert(to.end(), list.begin(), list.end());
  count = static_cast<int32_t>(list.size());
}

void add_setup(StepArrays& arrays, const Sequence& seq) {
  const SamplingParams& p = *seq.params;
  SlotSetup setup{SamplingScalars::of(p, seq.seed, seq.choice)};
  setup.slot = seq.slot;
  setup.num_logprobs = static_cast<int32_t>(p.logprobs.value_or(-1));
  setup.num_prompt_logprobs = static_cast<int32_t>(p.prompt_logprobs.value_or(-1));
  if (p.min_tokens > 0) {
    setup.masked_before = static_cast<int32_t>(seq.num_prompt_tokens + p.min_tokens);
    add_list(arrays.setup_ids, setup.num_masked_ids, *seq.stop_ids);
  }
  if (p.allowed_token_ids) add_list(arrays.setup_ids, setup.num_allowed_ids, *p.allowed_token_ids);
  if (seq.bad_words) add_list(arrays.setup_ids, setup.num_bad_word_ids, *seq.bad_words);
  if (setup.has_penalties() || setup.num_bad_word_ids > 0) {
    add_list(arrays.setup_ids, setup.num_tokens, seq.token_ids);
    setup.num_prompt_tokens = static_cast<int32_t>(seq.num_prompt_tokens);
  }
  for (const auto& [id, bias] : p.logit_bias)
    arrays.biases.push_back({id, static_cast<float>(bias)});
  setup.num_biases = static_cast<int32_t>(p.logit_bias.size());
  arrays.setups.push_back(setup);
}

}  // namespace

StepInput BatchBuilder::build(const StepPlan& plan) {
  arrays_.clear();
  for (const Sequence* seq : plan.setups) add_setup(arrays_, *seq);
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
