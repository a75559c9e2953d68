#include "nanovllm/runtime/rank_state.h"

#include <new>

#include "nanovllm/base/check.h"

namespace nanovllm {

void Slot::start(const SlotSetup& setup, std::span<const int32_t>& ids,
                 std::span<const TokenBias>& biases, const Slot* same) {
  static const auto no_lists = std::make_shared<const Lists>();
  const auto take = [](auto& from, int32_t count) {
    const auto taken = from.first(to_size(count));
    from = from.subspan(to_size(count));
    return taken;
  };
  const auto masked = take(ids, setup.num_masked_ids), allowed = take(ids, setup.num_allowed_ids),
             mask = take(ids, setup.num_allowed_words), words = take(ids, setup.num_bad_word_ids),
             tokens = take(ids, setup.num_tokens);
  const auto bias = take(biases, setup.num_biases);
  const std::shared_ptr<const Lists> shared = same != nullptr ? same->lists_ : no_lists;
  const bool can_share = same == nullptr || same->is_complete_;
  *this = Slot(setup, num_starts_ + 1, shared);
  try {
    if (!can_share) throw std::bad_alloc();
    if (same == nullptr && setup.has_lists())
      lists_ = std::make_shared<const Lists>(Lists{{masked.begin(), masked.end()},
                                                   {allowed.begin(), allowed.end()},
                                                   {mask.begin(), mask.end()},
                                                   {words.begin(), words.end()},
                                                   {bias.begin(), bias.end()}});
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i >= to_size(setup.num_prompt_tokens)) push(tokens[i]);
      else if (setup.has_penalties()) count(tokens[i], 0);
    }
  } catch (const std::bad_alloc&) {
    *this = Slot(setup, num_starts_, no_lists);
    is_complete_ = false;
  }
}

void Slot::push(int32_t token) {
  ++num_known_;
  if (!lists_->bad_words.empty()) answer_.push_back(token);
  if (is_complete_ && setup_.has_penalties()) count(token, 1);
}

void Slot::count(int32_t token, int32_t in_answer) {
  const auto [at, is_new] = count_of_.try_emplace(token, counts_.size());
  if (is_new) counts_.push_back({token, 0});
  counts_[at->second].in_answer += in_answer;
}

SampleRow Slot::sample_row(int32_t position) {
  SampleRow row{setup_};
  row.position = static_cast<uint32_t>(position);
  row.counts = counts_;
  row.biases = lists_->biases;
  row.allowed_ids = lists_->allowed_ids;
  row.allowed_mask = lists_->allowed_mask;
  row.num_logprobs = setup_.num_logprobs + 1;
  if (position < setup_.masked_before) row.masked_ids = lists_->masked_ids;
  if (!is_complete_ || (!setup_.has_penalties() && lists_->bad_words.empty())) return row;
  const bool in_flight = num_known_ < position;
  check(num_known_ + 1 >= position, "position {}: only {} tokens are known", position, num_known_);
  if (in_flight) row.last_token = kTokenInFlight;
  masked_now_.assign(row.masked_ids.begin(), row.masked_ids.end());
  masked_after_.clear();
  const std::vector<int32_t>& words = lists_->bad_words;
  for (auto word = words.begin(); word != words.end();) {
    const auto first = word + 1, last = word + *word;
    // All of the word but its last token must have been drawn; the end of that may be in flight.
    const auto known = in_flight && first < last ? last - 1 : last;
    if (known - first <= std::ssize(answer_) &&
        std::equal(first, known, answer_.end() - (known - first))) {
      if (known == last) masked_now_.push_back(*last);
      else masked_after_.push_back({*known, *last});
    }
    word = last + 1;
  }
  row.masked_ids = masked_now_;
  row.masked_after = masked_after_;
  return row;
}

void RankState::apply(const StepInput& input, Step& step) {
  std::span<const int32_t> setup_ids = input.setup_ids;
  std::span<const TokenBias> biases = input.biases;
  for (const SlotSetup& setup : input.setups)
    slot(setup.slot)
        .start(setup, setup_ids, biases, setup.same_lists < 0 ? nullptr : &slot(setup.same_lists));
  for (const BlockUpdate& update : input.block_updates) slot(update.slot).add_block(update.index);
  step.token_ids.assign(input.token_ids.begin(), input.token_ids.end());
  step.rows.assign(input.rows.begin(), input.rows.end());
  step.block_updates.assign(input.block_updates.begin(), input.block_updates.end());
  int64_t num_tokens = 0;
  for (const StepRow& row : input.rows) {
    const int64_t end = row.start + row.num_tokens, num_blocks = slot(row.slot).num_blocks();
    check(end <= num_blocks * block_size_, "slot {}: {} tokens in {} blocks", row.slot, end,
          num_blocks);
    num_tokens += row.num_tokens;
  }
  check(num_tokens == std::ssize(input.token_ids), "step {}: {} tokens in rows, {} ids",
        input.header().step, num_tokens, input.token_ids.size());
  for (const OutputInput& output : input.outputs) {
    const bool is_drawn = output.kind == OutputKind::kToken;
    step.outputs.push_back({output.row, output.offset, is_drawn ? output.slot : -1});
    if (!is_drawn) continue;
    check(step.samples.size() + 1 == step.outputs.size(), "a token after other outputs");
    const StepRow& row = input.rows[to_size(output.row)];
    step.samples.push_back(slot(output.slot).sample_row(row.start + output.offset + 1));
    if (output.num_late_words == 0) continue;
    SampleRow& sample = step.samples.back();
    sample.num_late_words = output.num_late_words;
    sample.allowed_ids = sample.allowed_mask = {};  // the mask that comes contains them
  }
}

}  // namespace nanovllm
