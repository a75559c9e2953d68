#include "fake_executor.h"

#include <algorithm>
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
      max_blocks_((max_model_len + block_size - 1) / block_size),
      tables_(static_cast<size_t>(max_num_seqs * max_blocks_)),
      last_tokens_(static_cast<size_t>(max_num_seqs)),
      cache_(static_cast<size_t>(num_blocks * block_size)),
      states_(static_cast<size_t>(num_snapshots ? max_num_seqs : 0)),
      snapshots_(static_cast<size_t>(num_snapshots.value_or(0))) {}

void FakeExecutor::submit(const StepInput& input) {
  if (!has_memory_ && !input.setup_ids.empty()) throw std::bad_alloc();
  num_setup_ids_ += input.setup_ids.size();
  ++num_submitted_;
  check(num_submitted_ - num_waited_ <= 2, "more than two steps under way");
  last_rows_.assign(input.rows.begin(), input.rows.end());
  last_state_copies_.assign(input.state_copies.begin(), input.state_copies.end());
  const double submit_time = steady_seconds();
  outputs_.push_back(run(input));
  outputs_.back().submit_time = submit_time;
  outputs_.back().done_time = steady_seconds();
}

const StepOutput& FakeExecutor::wait() {
  check(!outputs_.empty(), "wait without a step under way");
  ++num_waited_;
  if (fail_at_ >= 0 && num_waited_ >= fail_at_) throw std::runtime_error("the device fell off");
  last_ = std::move(outputs_.front());
  outputs_.pop_front();
  return last_;
}

StepOutput FakeExecutor::run(const StepInput& input) {
  state_.apply(input);
  state_.fill(input, batch_);
  for (const BlockUpdate& update : batch_.block_updates)
    tables_.at(static_cast<size_t>(update.slot * max_blocks_ + update.index)) = update.block;
  for (size_t r = 0; r < input.rows.size(); ++r)
    for (int32_t t = batch_.cu_seqlens_q[r]; t < batch_.cu_seqlens_q[r + 1]; ++t)
      if (int32_t& id = batch_.input_ids[static_cast<size_t>(t)]; id == kTokenInFlight)
        id = last_tokens_[static_cast<size_t>(input.rows[r].slot)];
  begin_states(input);
  // As on a device, all rows of the step store K and V before any row reads them. So there are two
  // passes, of which the second one checks.
  std::vector<uint64_t> chains(batch_.input_ids.size());
  for (size_t r = 0; r < input.rows.size(); ++r) {
    const RowInput& row = input.rows[r];
    const int32_t* table = tables_.data() + batch_.seq_slots[r] * max_blocks_;
    const auto at = [&](int64_t position) -> Entry& {
      const int64_t block = table[position / block_size_];
      return cache_.at(static_cast<size_t>(block * block_size_ + position % block_size_));
    };
    uint64_t chain = row.start == 0 ? 0 : at(row.start - 1).chain;
    for (int32_t i = 0; i < row.num_tokens; ++i) {
      const auto t = static_cast<size_t>(batch_.cu_seqlens_q[r] + i);
      const int32_t position = row.start + i;
      chain = FakeModel::extend(chain, batch_.input_ids[t]);
      chains[t] = chain;
      if (row.store != 0) at(position) = {batch_.input_ids[t], position, chain};
    }
  }
  for (size_t r = 0; r < input.rows.size(); ++r) {
    const int32_t* table = tables_.data() + batch_.seq_slots[r] * max_blocks_;
    uint64_t chain = 0;
    for (int32_t p = 0; p < batch_.context_lens[r]; ++p) {
      const Entry& entry =
          cache_.at(static_cast<size_t>(table[p / block_size_] * block_size_ + p % block_size_));
      chain = FakeModel::extend(chain, entry.token);
      check(entry.position == p && entry.chain == chain,
            "step {}, row {}: position {} of {} in block {} holds position {} of another prefix",
            input.header().step, r, p, batch_.context_lens[r], table[p / block_size_],
            entry.position);
    }
    check(chain == chains[static_cast<size_t>(batch_.cu_seqlens_q[r + 1] - 1)],
          "step {}, row {}: the cache has another prefix than the row", input.header().step, r);
  }
  advance_states(input, chains);
  StepOutput output;
  for (size_t i = 0; i < input.samples.size(); ++i) {
    const SampleInput& sample = input.samples[i];
    Slot& slot = state_.slot(sample.slot);
    const uint64_t chain = chains[static_cast<size_t>(batch_.sample_rows[i])];
    SampleOutput drawn;
    drawn.sequence = sample.sequence;
    if (model_.is_finite(chain)) {
      drawn.token_id =
          model_.draw(chain, slot.setup().seed, static_cast<int32_t>(slot.setup().choice));
    } else {
      drawn.status = RowStatus::kNotFinite;
    }
    slot.push(drawn.token_id);
    last_tokens_[static_cast<size_t>(sample.slot)] = drawn.token_id;
    output.samples.push_back(drawn);
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
  std::vector<int32_t> slots(batch_.seq_slots);
  if (input.token_ids.size() == input.rows.size()) slots.resize((slots.size() + 15) / 16 * 16, -1);
  for (size_t r = 0; r < slots.size(); ++r) {
    if (slots[r] < 0) continue;
    const RowInput& row = input.rows[r];
    FakeState& state = states_.at(static_cast<size_t>(slots[r]));
    check(state.position == row.start, "step {}: the row of slot {} starts at {}, its state at {}",
          input.header().step, row.slot, row.start, state.position);
    for (int32_t t = batch_.cu_seqlens_q[r]; t < batch_.cu_seqlens_q[r + 1]; ++t)
      state.chain = FakeModel::extend(state.chain, batch_.input_ids[static_cast<size_t>(t)]);
    state.position += row.num_tokens;
    check(state.chain == chains[static_cast<size_t>(batch_.cu_seqlens_q[r + 1] - 1)],
          "step {}: slot {} has the state of another prefix", input.header().step, row.slot);
  }
}

void FakeExecutor::end_states(const StepInput& input) {
  std::vector<bool> saved(snapshots_.size());
  for (const StateCopy& copy : input.state_copies) {
    if (copy.kind == StateCopy::Kind::kRestore) continue;
    check(std::ranges::any_of(input.rows, [&](const RowInput& r) { return r.slot == copy.from; }),
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
