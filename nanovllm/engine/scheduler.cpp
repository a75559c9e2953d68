#include "nanovllm/engine/scheduler.h"

#include <algorithm>
#include <new>

#include "nanovllm/base/check.h"
#include "nanovllm/base/to_size.h"

namespace nanovllm {

namespace {

void insert_by_age(auto& sequences, Sequence* seq) {
  sequences.insert(std::ranges::upper_bound(sequences, seq->id, {}, &Sequence::id), seq);
}

void erase_by_age(auto& sequences, Sequence* seq) {
  const auto at = std::ranges::lower_bound(sequences, seq->id, {}, &Sequence::id);
  check(at != sequences.end() && *at == seq, "sequence {} is not in its queue", seq->id);
  sequences.erase(at);
}

FinishReason end_of(const Sequence& seq) {
  if (std::ranges::binary_search(seq.params->stop_ids, seq.token_ids.back()))
    return FinishReason::kStop;
  if (seq.constraint && seq.constraint->is_done()) return FinishReason::kStop;
  return seq.num_known() < seq.final_len() ? FinishReason::kNone : FinishReason::kLength;
}

}  // namespace

void StepPlan::clear() {
  rows.clear();
  outputs.clear();
  setups.clear();
  preempted.clear();
  copies.clear();
  state_copies.clear();
  num_tokens = 0;
}

Scheduler::Scheduler(const EngineConfig& config, CacheManager& cache)
    : config_(config), cache_(cache) {
  for (int64_t slot = config.max_num_seqs; slot-- > 0;)
    free_slots_.push_back(static_cast<int32_t>(slot));
}

void Scheduler::add(std::vector<std::unique_ptr<Sequence>> choices) {
  Sequence* const first = choices.front().get();
  const uint64_t first_id = first->id;
  try {
    insert_by_age(waiting_, first);
    for (std::unique_ptr<Sequence>& choice : choices) {
      choice->max_tokens =
          std::min(choice->max_tokens, config_.max_model_len - choice->num_prompt_tokens);
      if (choice.get() != first) first->choices.push_back(choice.get());
      const uint64_t id = choice->id;
      sequences_.emplace(id, std::move(choice));
    }
  } catch (const std::bad_alloc&) {
    std::erase(waiting_, first);
    for (size_t i = 0; i < choices.size(); ++i) sequences_.erase(first_id + i);
    throw;
  }
  num_held_choices_ += static_cast<int64_t>(first->choices.size());
}

void Scheduler::finish(Sequence& seq, FinishReason reason) {
  if (seq.is_finished()) return;
  const auto end = [&](Sequence& ended) {
    ended.status = SequenceStatus::kFinished;
    ended.finish_reason = reason;
    if (ended.num_in_flight == 0) retire(ended);
  };
  num_held_choices_ -= static_cast<int64_t>(seq.choices.size());
  for (Sequence* choice : seq.choices) end(*choice);
  seq.choices.clear();
  if (seq.status == SequenceStatus::kRunning) stop_running(seq);
  else erase_by_age(waiting_, &seq);
  end(seq);
}

void Scheduler::schedule(StepPlan& plan) {
  plan.clear();
  plan.step = step_ = static_cast<uint64_t>(stats_.steps) + 1;
  // A preemption removes from the end of running_, never before the sequence that needs a block; a
  // fork inserts behind it. So the index stays right (`progress.oldest-never-preempted`).
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& seq = *running_[i];
    if (seq.last_step == step_ || seq.num_pending() != 1 || seq.num_tokens() >= seq.final_len())
      continue;
    if (ensure_room(plan, seq)) schedule_row(plan, seq, /*is_decode=*/seq.num_generated() > 0);
  }
  for (size_t i = 0; i < running_.size() && plan.num_tokens < config_.max_num_batched_tokens; ++i) {
    Sequence& seq = *running_[i];
    if (seq.last_step == step_ || seq.num_pending() <= 1) continue;
    schedule_row(plan, seq, /*is_decode=*/false);
  }
  // `progress.no-admission-after-preemption`: the freed blocks are for the sequences that run.
  while (plan.preempted.empty() && !waiting_.empty() && !free_slots_.empty() &&
         plan.num_tokens < config_.max_num_batched_tokens) {
    if (!admit(plan, *waiting_.front())) break;
  }
  std::ranges::stable_partition(
      plan.outputs, [](OutputKind kind) { return kind == OutputKind::kToken; },
      &ScheduledOutput::kind);
  if (!plan.empty()) stats_.count_step(plan.num_tokens);
}

void Scheduler::schedule_row(StepPlan& plan, Sequence& seq, bool is_decode, bool store) {
  const auto row = static_cast<int32_t>(plan.rows.size());
  const auto start = static_cast<int32_t>(seq.num_computed);
  const auto num_tokens = static_cast<int32_t>(
      std::min(cache_.row_end(seq) - start, config_.max_num_batched_tokens - plan.num_tokens));
  plan.rows.push_back({{seq.slot, start, num_tokens, store}, &seq, is_decode});
  plan.num_tokens += num_tokens;
  (is_decode ? stats_.decode_tokens : stats_.prefill_tokens) += num_tokens;
  seq.num_computed += num_tokens;
  seq.last_step = step_;
  ++seq.num_in_flight;
  cache_.save_state(seq, step_, plan.state_copies);
  commit(seq);
  const auto add_output = [&](int32_t offset, OutputKind kind, int32_t target) {
    plan.outputs.push_back({{seq.id, seq.slot, row, offset, kind, target}, &seq});
  };
  if (seq.wants_prompt_logprobs()) {
    const int64_t end = std::min(seq.num_computed, seq.num_prompt_tokens - 1);
    for (int32_t offset = 0; start + offset < end; ++offset)
      add_output(offset, OutputKind::kLogprobs, seq.token_ids[to_size(start + offset + 1)]);
  }
  if (seq.num_pending() > 0) return;
  add_output(num_tokens - 1, OutputKind::kToken, kNoToken);
  ++seq.num_unread;
  if (!seq.choices.empty()) fork_choices(plan, seq);
}

bool Scheduler::ensure_room(StepPlan& plan, Sequence& seq) {
  while (!cache_.reserve(seq, seq.num_tokens())) {
    Sequence& newest = *running_.back();
    check(newest.last_step != step_, "sequence {} is in the step that preempts it", newest.id);
    preempt(plan, newest);
    if (&newest == &seq) return false;
  }
  return true;
}

bool Scheduler::admit(StepPlan& plan, Sequence& seq) {
  // The host has not read this sequence's last token yet; the next step will know it.
  if (seq.num_unread > 0) return false;
  if (seq.id == blocked_ && cache_.blocks().stats().blocks_freed == num_freed_) return false;
  cache_.match(seq, step_, hit_);
  if (hit_.grows) return false;
  const int64_t num_known = seq.num_known();
  if (!cache_.start(seq, hit_, num_known)) {  // `progress.whole-prompt`
    blocked_ = seq.id;
    num_freed_ = cache_.blocks().stats().blocks_freed;
    return false;
  }
  waiting_.pop_front();
  // If the whole sequence is cached, the last token is computed again for its logits, but its K and
  // V are not stored: nobody writes to a shared block (`ownership.shared-blocks`).
  seq.num_computed = std::min(hit_.length, num_known - 1);
  if (!seq.num_cached_tokens) seq.num_cached_tokens = seq.num_computed;
  stats_.prefix_queries += num_known;
  stats_.prefix_hits += seq.num_computed;
  start_running(plan, seq);
  if (hit_.snapshot)
    plan.state_copies.push_back({StateCopy::Kind::kRestore, *hit_.snapshot, seq.slot});
  schedule_row(plan, seq, /*is_decode=*/false, /*store=*/hit_.length < num_known);
  return true;
}

void Scheduler::fork_choices(StepPlan& plan, Sequence& parent) {
  ScheduledOutput output = plan.outputs.back();  // the parent's
  output.forked = true;
  num_held_choices_ -= static_cast<int64_t>(parent.choices.size());
  for (Sequence* choice : parent.choices) {
    if (free_slots_.empty() || !cache_.blocks().fork(parent, *choice, plan.copies)) {
      insert_by_age(waiting_, choice);
      continue;
    }
    choice->num_computed = parent.num_prompt_tokens;
    choice->num_cached_tokens = parent.num_cached_tokens;
    choice->last_step = step_;
    ++choice->num_in_flight;
    ++choice->num_unread;
    start_running(plan, *choice);
    if (cache_.has_states())
      plan.state_copies.push_back({StateCopy::Kind::kFork, parent.slot, choice->slot});
    output.sequence = choice->id;
    output.slot = choice->slot;
    output.seq = choice;
    plan.outputs.push_back(output);
  }
  parent.choices.clear();
}

void Scheduler::start_running(StepPlan& plan, Sequence& seq) {
  seq.status = SequenceStatus::kRunning;
  seq.slot = free_slots_.back();
  free_slots_.pop_back();
  seq.num_blocks_sent = 0;
  insert_by_age(running_, &seq);
  plan.setups.push_back(&seq);
}

void Scheduler::stop_running(Sequence& seq) {
  cache_.release(seq);
  free_slots_.push_back(seq.slot);
  seq.slot = -1;
  seq.num_computed = 0;
  erase_by_age(running_, &seq);
}

void Scheduler::preempt(StepPlan& plan, Sequence& seq) {
  stop_running(seq);
  seq.status = SequenceStatus::kWaiting;
  insert_by_age(waiting_, &seq);
  ++stats_.preemptions;
  plan.preempted.push_back(&seq);
}

void Scheduler::postprocess(const StepPlan& plan, const StepOutput& output,
                            std::vector<SequenceUpdate>& updates) {
  check(output.values.size() == plan.outputs.size(), "step {}: {} values, {} expected", plan.step,
        output.values.size(), plan.outputs.size());
  retired_.clear();
  updates.clear();
  std::span<const Logprob> rest = output.logprobs;
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    Sequence& seq = *plan.outputs[i].seq;
    const OutputValue& drawn = output.values[i];
    check(drawn.sequence == seq.id, "step {}: value {} is sequence {}'s, not {}'s", plan.step, i,
          drawn.sequence, seq.id);
    if (drawn.kind == OutputKind::kLogprobs)
      seq.num_prompt_logprobs_read =
          std::max<int64_t>(seq.num_prompt_logprobs_read, drawn.position);
    if (drawn.kind != OutputKind::kToken) continue;
    const auto logprobs = rest.first(to_size(drawn.num_logprobs));
    rest = rest.subspan(logprobs.size());
    if (seq.is_finished()) continue;
    --seq.num_unread;
    FinishReason reason =
        drawn.status == RowStatus::kNoMemory ? FinishReason::kNoMemory : FinishReason::kError;
    if (drawn.status == RowStatus::kOk) {
      seq.token_ids.push_back(drawn.token_id);
      if (seq.constraint) seq.constraint->accept(drawn.token_id);
      ++stats_.generated_tokens;
      commit(seq);
      reason = end_of(seq);
    } else {
      cache_.forget(seq);
    }
    updates.push_back({&seq, drawn.status, logprobs});
    if (reason != FinishReason::kNone) finish(seq, reason);
  }
  // A finished sequence exists until no submitted step has a row of it (`cleanup.in-flight`).
  const auto landed = [&](Sequence& seq) {
    if (--seq.num_in_flight == 0 && seq.is_finished()) retire(seq);
  };
  for (const ScheduledRow& row : plan.rows) landed(*row.seq);
  for (const ScheduledOutput& scheduled : plan.outputs)
    if (scheduled.forked) landed(*scheduled.seq);
}

// A block with generated tokens is registered when the token after its last one is known, so that
// async scheduling does not change what is in the cache (`cache.same-with-async`).
void Scheduler::commit(Sequence& seq) {
  const int64_t known = std::max(seq.num_prompt_tokens, seq.num_known() - 1);
  cache_.commit(seq, std::min(seq.num_computed, known));
}

void Scheduler::retire(Sequence& seq) {
  const auto at = sequences_.find(seq.id);
  retired_.push_back(std::move(at->second));
  sequences_.erase(at);
}

}  // namespace nanovllm
