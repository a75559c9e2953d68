#include "nanovllm/engine/batch_builder.h"

#include <algorithm>

#include "nanovllm/base/to_size.h"

namespace nanovllm {

namespace {

/// Appends `list` and counts it.
template <class To, class From>
void add_list(std::vector<To>& to, int32_t& count, const From& list) {
  to.insert(to.end(), list.begin(), list.end());
  count = static_cast<int32_t>(list.size());
}

/// Clears the bits of tokens that the parameters do not allow.
void allow_only(const RequestParams& params, std::span<int32_t> mask) {
  for (size_t i = 0; i < params.allowed_mask.size(); ++i) mask[i] &= params.allowed_mask[i];
  if (params.allowed_ids.empty()) return;
  std::vector<int32_t> allowed(mask.size());
  for (const int32_t id : params.allowed_ids)
    allowed[to_size(id / 32)] |= static_cast<int32_t>(1U << (id % 32));
  for (size_t i = 0; i < mask.size(); ++i) mask[i] &= allowed[i];
}

}  // namespace

void BatchBuilder::add_setup(const Sequence& seq, bool with_lists) {
  const RequestParams& params = *seq.params;
  const SamplingParams& p = params.given;
  SlotSetup& setup = arrays_.setups.emplace_back(SamplingScalars::of(p, seq.seed, seq.choice));
  setup.slot = seq.slot;
  setup.num_logprobs = static_cast<int32_t>(p.logprobs.value_or(-1));
  setup.num_prompt_logprobs = static_cast<int32_t>(p.prompt_logprobs.value_or(-1));
  const auto slot = to_size(seq.slot);
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
    arrays_.rows.push_back(row);
    for (int64_t i = row.start; i < row.start + row.num_tokens; ++i)
      arrays_.token_ids.push_back(i < seq.num_known() ? seq.token_ids[to_size(i)] : kTokenInFlight);
    for (int64_t i = seq.num_blocks_sent; i < std::ssize(seq.block_table); ++i)
      arrays_.block_updates.push_back(
          {seq.slot, static_cast<int32_t>(i), seq.block_table[to_size(i)]});
  }
  for (const ScheduledOutput& output : plan.outputs) {
    arrays_.outputs.push_back(output);
    if (output.is_late())
      arrays_.outputs.back().num_late_words = static_cast<int32_t>(num_mask_words_);
  }
  arrays_.copies = plan.copies;
  arrays_.state_copies = plan.state_copies;
  clear_for_reuse(buffer_);
  return arrays_.write(plan.step, buffer_);
}

StepInput BatchBuilder::build_late(const StepPlan& plan) {
  arrays_.clear();
  const auto num_words = to_size(num_mask_words_);
  constraints_.clear();
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const Sequence& seq = *plan.outputs[i].seq;
    if (!plan.outputs[i].is_late() || seq.is_finished()) continue;
    arrays_.late_outputs.push_back(static_cast<int32_t>(i));
    constraints_.push_back(seq.constraint.get());
  }
  const StepInput late = arrays_.write(plan.step, late_buffer_, constraints_.size() * num_words);
  std::span masks(const_cast<int32_t*>(late.mask_words.data()), late.mask_words.size());
  pool_.fill(constraints_, masks);
  for (const int32_t output : arrays_.late_outputs) {
    allow_only(*plan.outputs[to_size(output)].seq->params, masks.first(num_words));
    masks = masks.subspan(num_words);
  }
  return late;
}

}  // namespace nanovllm
