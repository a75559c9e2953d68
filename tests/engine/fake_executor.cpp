#include "fake_executor.h"

#include <algorithm>
#include <map>
#include <new>
#include <stdexcept>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"

namespace nanovllm::testing {

FakeExecutor::FakeExecutor(const FakeModel& model, int64_t max_num_seqs, int64_t num_blocks,
                           int64_t block_size, int64_t max_model_len,
                           std::optional<int64_t> num_snapshots)
    : model_(model),
      state_(max_num_seqs, block_size),
      block_size_(block_size),
      last_tokens_(static_cast<size_t>(max_num_seqs)),
      cache_(static_cast<size_t>(num_blocks * block_size)),
      states_(static_cast<size_t>(num_snapshots ? max_num_seqs : 0)),
      snapshots_(static_cast<size_t>(num_snapshots.value_or(0))) {
  const int64_t max_blocks = (max_model_len + block_size - 1) / block_size;
  tables_.resize(static_cast<size_t>(max_num_seqs * max_blocks));
  kv_.block_size = block_size;
  kv_.block_tables = {tables_.data(), DType::kI32, max_num_seqs, max_blocks};
  step_.last_tokens = {last_tokens_.data(), DType::kI32, max_num_seqs};
}

void FakeExecutor::submit(const StepInput& input) {
  if (!has_memory_ && !input.setup_ids.empty()) throw std::bad_alloc();
  num_setup_ids_ += input.setup_ids.size();
  ++num_submitted_;
  check(num_submitted_ - num_waited_ <= 2, "more than two steps under way");
  check(late_.empty(), "a step before the late part of the one before it");
  last_rows_.assign(input.rows.begin(), input.rows.end());
  last_state_copies_.assign(input.state_copies.begin(), input.state_copies.end());
  const double submit_time = steady_seconds();
  outputs_.push_back(run(input));
  outputs_.back().submit_time = submit_time;
  outputs_.back().done_time = steady_seconds();
}

const StepOutput& FakeExecutor::wait() {
  check(!outputs_.empty(), "wait without a step under way");
  check(outputs_.size() > 1 || late_.empty(), "wait for a step without its late part");
  ++num_waited_;
  if (fail_at_ >= 0 && num_waited_ >= fail_at_) throw std::runtime_error("the device fell off");
  last_ = std::move(outputs_.front());
  outputs_.pop_front();
  return last_;
}

void FakeExecutor::complete(const StepInput& late) {
  check(!late_.empty(), "no step needs a late part");
  check(late.header().step == step_number_, "the late part of step {}, not {}", late.header().step,
        step_number_);
  std::span<const int32_t> words = late.mask_words;
  const size_t num_words = late.late_outputs.empty() ? 0 : words.size() / late.late_outputs.size();
  std::map<size_t, std::span<const int32_t>> masks;
  for (size_t i = 0; i < late.late_outputs.size(); ++i)
    masks[static_cast<size_t>(late.late_outputs[i])] = words.subspan(i * num_words, num_words);
  for (const Late& l : std::exchange(late_, {}))
    draw(outputs_.back().values[l.output], l.slot, l.chain, masks[l.output]);
}

void FakeExecutor::draw(OutputValue& value, int32_t slot, uint64_t chain,
                        std::span<const int32_t> mask) {
  const SlotSetup& setup = state_.slot(slot).setup();
  const auto choice = static_cast<int32_t>(setup.choice);
  if (!model_.is_finite(chain)) value.status = RowStatus::kNotFinite;
  else if (mask.empty()) value.token_id = model_.draw(chain, setup.seed, choice);
  else value.token_id = model_.draw(chain, setup.seed, choice, mask);
  state_.slot(slot).push(value.token_id);
  last_tokens_[static_cast<size_t>(slot)] = value.token_id;
}

StepOutput FakeExecutor::run(const StepInput& input) {
  step_number_ = input.header().step;
  step_.clear();
  state_.apply(input, step_);
  for (const BlockUpdate& update : input.block_updates)
    check(update.index < kv_.block_tables.shape[1], "slot {}: block {}", update.slot, update.index);
  if (input.token_ids.size() == input.rows.size()) step_.pad((step_.num_seqs() + 15) / 16 * 16);
  derive(step_, kv_, arrays_);
  begin_states(input);
  // As on a device, all rows of the step store K and V before any row reads them. So there are two
  // passes, of which the second one checks.
  std::vector<uint64_t> chains(arrays_.input_ids.size());
  for (size_t r = 0; r < input.rows.size(); ++r) {
    const StepRow& row = input.rows[r];
    const int32_t* table = kv_.block_tables.rows(row.slot, 1).as<int32_t>();
    const auto at = [&](int64_t position) -> Entry& {
      const int64_t block = table[position / block_size_];
      return cache_.at(static_cast<size_t>(block * block_size_ + position % block_size_));
    };
    uint64_t chain = row.start == 0 ? 0 : at(row.start - 1).chain;
    for (int32_t i = 0; i < row.num_tokens; ++i) {
      const auto t = static_cast<size_t>(arrays_.cu_seqlens_q[r] + i);
      const int32_t position = row.start + i;
      chain = FakeModel::extend(chain, arrays_.input_ids[t]);
      chains[t] = chain;
      if (row.store != 0) at(position) = {arrays_.input_ids[t], position, chain};
    }
  }
  for (size_t r = 0; r < input.rows.size(); ++r) {
    const int32_t* table = kv_.block_tables.rows(input.rows[r].slot, 1).as<int32_t>();
    uint64_t chain = 0;
    for (int32_t p = 0; p < arrays_.context_lens[r]; ++p) {
      const Entry& entry =
          cache_.at(static_cast<size_t>(table[p / block_size_] * block_size_ + p % block_size_));
      chain = FakeModel::extend(chain, entry.token);
      check(entry.position == p && entry.chain == chain,
            "step {}, row {}: position {} of {} in block {} holds position {} of another prefix",
            input.header().step, r, p, arrays_.context_lens[r], table[p / block_size_],
            entry.position);
    }
    check(chain == chains[static_cast<size_t>(arrays_.cu_seqlens_q[r + 1] - 1)],
          "step {}, row {}: the cache has another prefix than the row", input.header().step, r);
  }
  advance_states(input, chains);
  StepOutput output;
  for (size_t i = 0; i < input.outputs.size(); ++i) {
    const OutputInput& wanted = input.outputs[i];
    const auto t = static_cast<size_t>(arrays_.output_rows[i]);
    output.values.push_back(
        {.sequence = wanted.sequence, .kind = wanted.kind, .position = arrays_.positions[t] + 1});
    if (wanted.kind != OutputKind::kToken) continue;
    if (wanted.num_late_words > 0) late_.push_back({i, wanted.slot, chains[t]});
    else draw(output.values.back(), wanted.slot, chains[t], {});
  }
  for (const BlockCopy& copy : input.copies)
    for (int64_t i = 0; i < block_size_; ++i)
      cache_.at(static_cast<size_t>(copy.to * block_size_ + i)) =
          cache_.at(static_cast<size_t>(copy.from * block_size_ + i));
  end_states(input);
  return output;
}

void FakeExecutor::begin_states(const StepInput& input) {
  check(!states_.empty() || input.state_copies.empty(), "step {} copies states, but there are none",
        input.header().step);
  if (states_.empty()) return;
  for (const SlotSetup& setup : input.setups) states_.at(static_cast<size_t>(setup.slot)) = {};
  for (const StateCopy& copy : input.state_copies) {
    if (copy.kind != StateCopy::Kind::kRestore) continue;
    const std::optional<FakeState>& snapshot = snapshots_.at(static_cast<size_t>(copy.from));
    check(snapshot.has_value(), "step {}: snapshot {} is empty", input.header().step, copy.from);
    states_.at(static_cast<size_t>(copy.to)) = *snapshot;
  }
}

void FakeExecutor::advance_states(const StepInput& input, const std::vector<uint64_t>& chains) {
  if (states_.empty()) return;
  for (size_t r = 0; r < step_.rows.size(); ++r) {
    const StepRow& row = step_.rows[r];
    if (row.slot < 0) continue;  // state.padding-writes-nothing
    FakeState& state = states_.at(static_cast<size_t>(row.slot));
    check(state.position == row.start, "step {}: the row of slot {} starts at {}, its state at {}",
          input.header().step, row.slot, row.start, state.position);
    for (int32_t t = arrays_.cu_seqlens_q[r]; t < arrays_.cu_seqlens_q[r + 1]; ++t)
      state.chain = FakeModel::extend(state.chain, arrays_.input_ids[static_cast<size_t>(t)]);
    state.position += row.num_tokens;
    check(state.chain == chains[static_cast<size_t>(arrays_.cu_seqlens_q[r + 1] - 1)],
          "step {}: slot {} has the state of another prefix", input.header().step, row.slot);
  }
}

void FakeExecutor::end_states(const StepInput& input) {
  std::vector<bool> saved(snapshots_.size());
  for (const StateCopy& copy : input.state_copies) {
    if (copy.kind == StateCopy::Kind::kRestore) continue;
    check(std::ranges::any_of(input.rows, [&](const StepRow& r) { return r.slot == copy.from; }),
          "step {} copies the state of slot {}, which has no row", input.header().step, copy.from);
    const FakeState& state = states_.at(static_cast<size_t>(copy.from));
    if (copy.kind == StateCopy::Kind::kFork) {
      states_.at(static_cast<size_t>(copy.to)) = state;
      continue;
    }
    check(!saved.at(static_cast<size_t>(copy.to)), "step {} saves two states to snapshot {}",
          input.header().step, copy.to);
    saved[static_cast<size_t>(copy.to)] = true;
    snapshots_[static_cast<size_t>(copy.to)] = state;
  }
}

}  // namespace nanovllm::testing
