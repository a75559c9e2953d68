#include "nanovllm/runtime/rank_state.h"

#include <algorithm>

#include "nanovllm/base/check.h"

namespace nanovllm {

void Slot::start(const SlotSetup& setup, std::span<const int32_t>& ids,
                 std::span<const TokenBias>& biases) {
  setup_ = setup;
  ++num_starts_;
  const auto take = [](auto& list, auto& from, int32_t count) {
    list.assign(from.begin(), from.begin() + count);
    from = from.subspan(static_cast<size_t>(count));
  };
  take(masked_ids_, ids, setup.num_masked_ids);
  take(allowed_ids_, ids, setup.num_allowed_ids);
  take(bad_words_, ids, setup.num_bad_word_ids);
  take(biases_, biases, setup.num_biases);
  answer_.clear();
  counts_.clear();
  count_of_.clear();
  num_known_ = std::min(setup.num_tokens, setup.num_prompt_tokens);
  for (int32_t i = 0; i < setup.num_tokens; ++i) {
    const int32_t id = ids[static_cast<size_t>(i)];
    if (i >= setup.num_prompt_tokens) push(id);
    else if (setup.has_penalties()) count(id, 0);
  }
  ids = ids.subspan(static_cast<size_t>(setup.num_tokens));
}

void Slot::push(int32_t token) {
  ++num_known_;
  if (!bad_words_.empty()) answer_.push_back(token);
  if (setup_.has_penalties()) count(token, 1);
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
  row.biases = biases_;
  row.allowed_ids = allowed_ids_;
  row.num_logprobs = setup_.num_logprobs + 1;
  if (position < setup_.masked_before) row.masked_ids = masked_ids_;
  if (!setup_.has_penalties() && bad_words_.empty()) return row;
  const bool in_flight = num_known_ < position;
  check(num_known_ + 1 >= position, "position {}: only {} tokens are known", position, num_known_);
  if (in_flight) row.last_token = kTokenInFlight;
  masked_now_.assign(row.masked_ids.begin(), row.masked_ids.end());
  masked_after_.clear();
  for (auto word = bad_words_.begin(); word != bad_words_.end();) {
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

RankState::RankState(int64_t max_num_seqs, int64_t max_blocks_per_seq, int64_t block_size)
    : slots_(static_cast<size_t>(max_num_seqs)),
      block_tables_(static_cast<size_t>(max_num_seqs * max_blocks_per_seq)),
      max_blocks_per_seq_(max_blocks_per_seq),
      block_size_(block_size) {}

void RankState::apply(const StepInput& input) {
  std::span<const int32_t> setup_ids = input.setup_ids;
  std::span<const TokenBias> biases = input.biases;
  for (const SlotSetup& setup : input.setups) slot(setup.slot).start(setup, setup_ids, biases);
  for (const BlockUpdate& update : input.block_updates)
    block_tables_[static_cast<size_t>(update.slot * max_blocks_per_seq_ + update.index)] =
        update.block;
}

void RankState::fill(const StepInput& input, HostBatch& batch) {
  const size_t num_tokens = input.token_ids.size();
  batch.input_ids.assign(input.token_ids.begin(), input.token_ids.end());
  batch.block_updates.assign(input.block_updates.begin(), input.block_updates.end());
  batch.positions.resize(num_tokens);
  batch.slot_mapping.resize(num_tokens);
  batch.cu_seqlens_q.assign(1, 0);
  batch.context_lens.clear();
  batch.seq_slots.clear();
  size_t t = 0;
  for (const RowInput& row : input.rows) {
    const int32_t* table = block_tables_.data() + row.slot * max_blocks_per_seq_;
    const int32_t end = row.start + row.num_tokens;
    for (int32_t position = row.start; position < end; ++position, ++t) {
      batch.positions[t] = position;
      batch.slot_mapping[t] =
          row.store == 0 ? -1
                         : static_cast<int32_t>(table[position / block_size_] * block_size_ +
                                                position % block_size_);
    }
    batch.cu_seqlens_q.push_back(static_cast<int32_t>(t));
    batch.context_lens.push_back(end);
    batch.seq_slots.push_back(row.slot);
  }
  check(t == num_tokens, "step {}: {} tokens in rows, {} ids", input.header().step, t, num_tokens);
  batch.sample_rows.clear();
  batch.sample_slots.clear();
  batch.samples.clear();
  for (const SampleInput& sample : input.samples) {
    const RowInput& row = input.rows[static_cast<size_t>(sample.row)];
    batch.sample_rows.push_back(batch.cu_seqlens_q[static_cast<size_t>(sample.row) + 1] - 1);
    batch.sample_slots.push_back(sample.slot);
    batch.samples.push_back(slot(sample.slot).sample_row(row.start + row.num_tokens));
  }
}

}  // namespace nanovllm
