#include "nanovllm/engine/batch_builder.h"

#include <algorithm>

namespace nanovllm {

namespace {

/// Appends `list` and counts it.
template <class To, class From>
void add_list(std::vector<To>& to, int32_t& count, const From& list) {
  to.insert(to.end(), list.begin(), list.end());
  count = static_cast<int32_t>(list.size());
}

}  // namespace

void BatchBuilder::add_setup(const Sequence& seq, bool with_lists) {
  const RequestParams& params = *seq.params;
  const SamplingParams& p = params.given;
  SlotSetup& setup = arrays_.setups.emplace_back(SamplingScalars::of(p, seq.seed, seq.choice));
  setup.slot = seq.slot;
  setup.num_logprobs = static_cast<int32_t>(p.logprobs.value_or(-1));
  setup.num_prompt_logprobs = static_cast<int32_t>(p.prompt_logprobs.value_or(-1));
  const auto slot = static_cast<size_t>(seq.slot);
  if (lists_.size() <= slot) lists_.resize(slot + 1);
  const uint64_t lists = with_lists && params.has_lists() ? params.id : 0;
  if (lists == 0) {
    if (params.has_lists()) static_cast<SamplingScalars&>(setup) = {};
    lists_[slot] = 0;
    return;
  }
  if (p.min_tokens > 0)
    setup.masked_before =
        static_cast<int32_t>(seq.num_prompt_tokens + std::min(p.min_tokens, seq.max_tokens));
  if (const auto same = std::ranges::find(lists_, lists); same != lists_.end()) {
    setup.same_lists = static_cast<int32_t>(same - lists_.begin());
  } else {
    if (p.min_tokens > 0) add_list(arrays_.setup_ids, setup.num_masked_ids, params.stop_ids);
    add_list(arrays_.setup_ids, setup.num_allowed_ids, params.allowed_ids);
    add_list(arrays_.setup_ids, setup.num_allowed_words, params.allowed_mask);
    add_list(arrays_.setup_ids, setup.num_bad_word_ids, params.bad_words);
    for (const auto& [id, bias] : p.logit_bias)
      arrays_.biases.push_back({id, static_cast<float>(bias)});
    setup.num_biases = static_cast<int32_t>(p.logit_bias.size());
  }
  lists_[slot] = lists;
  if (!setup.has_penalties() && params.bad_words.empty()) return;
  add_list(arrays_.setup_ids, setup.num_tokens, seq.token_ids);
  setup.num_prompt_tokens = static_cast<int32_t>(seq.num_prompt_tokens);
}

StepInput BatchBuilder::build(const StepPlan& plan, bool with_lists) {
  arrays_.clear();
  for (const Sequence* seq : plan.setups) add_setup(*seq, with_lists);
  for (const ScheduledRow& row : plan.rows) {
    const Sequence& seq = *row.seq;
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
    for (int64_t i = seq.num_blocks_sent; i < std::ssize(seq.block_table); ++i)
      arrays_.block_updates.push_back(
          {seq.slot, static_cast<int32_t>(i), seq.block_table[static_cast<size_t>(i)]});
  }
  for (const ScheduledSample& sample : plan.samples)
    arrays_.samples.push_back({sample.seq->id, sample.seq->slot, static_cast<int32_t>(sample.row)});
  arrays_.copies = plan.copies;
  arrays_.state_copies = plan.state_copies;
  return arrays_.write(plan.step, buffer_);
}

}  // namespace nanovllm
