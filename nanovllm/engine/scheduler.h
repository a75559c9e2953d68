#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/output.h"
#include "nanovllm/engine/cache_manager.h"
#include "nanovllm/engine/sequence.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

struct ScheduledRow : StepRow {
  Sequence* seq = nullptr;
  bool is_decode = false;  ///< whether it computes the token that was drawn last; else a prefill
};

struct ScheduledOutput : OutputInput {
  Sequence* seq = nullptr;
  bool forked = false;  ///< whether it is of a choice that has no row, but shares its parent's

  /// Whether tokens that are not read when it is submitted decide what may be drawn (order.late).
  bool is_late() const { return kind == OutputKind::kToken && seq->constraint != nullptr; }
};

/// What one step computes, as Scheduler::schedule() has decided.
struct StepPlan {
  uint64_t step = 0;  ///< counted from 1; a plan without rows does not count
  std::vector<ScheduledRow> rows;
  std::vector<ScheduledOutput> outputs;  ///< those of kToken first
  std::vector<Sequence*> setups;         ///< sequences that got their slot in this step
  std::vector<Sequence*> preempted;      ///< sequences that lost theirs
  std::vector<BlockCopy> copies;
  std::vector<StateCopy> state_copies;
  int64_t num_tokens = 0;

  bool empty() const { return rows.empty(); }
  void clear();
};

/// What a step changed in a sequence: it has a new last token, it has ended, or both.
struct SequenceUpdate {
  Sequence* seq = nullptr;
  RowStatus status = RowStatus::kOk;  ///< otherwise it has no new token
  std::span<const Logprob> logprobs;  ///< of the new token, in the StepOutput
};

/// Chooses the rows of each step: first come, first served; the decodes of running sequences come
/// first, then unfinished prefills, then new admissions. It owns the sequences
/// (`ownership.sequences`). schedule() may come before postprocess() of the previous step.
class Scheduler {
 public:
  /// Reads max_num_seqs, max_num_batched_tokens and max_model_len, which are not zero.
  Scheduler(const EngineConfig& config, CacheManager& cache);

  /// Adds the choices of a request, which have consecutive ids. The first one computes the prompt,
  /// which must fit, for all of them. After std::bad_alloc nothing has changed.
  void add(std::vector<std::unique_ptr<Sequence>> choices);
  /// Ends a sequence in any state, and the choices that still wait for its prompt. Tokens that
  /// submitted steps sample for it are dropped. It stays valid until the next postprocess().
  void finish(Sequence& seq, FinishReason reason);
  /// The sequence, or null if it has ended.
  Sequence* find(uint64_t id) const {
    const auto at = sequences_.find(id);
    return at == sequences_.end() ? nullptr : at->second.get();
  }
  /// Decides the next step. The plan's sequences exist until postprocess() of that plan.
  void schedule(StepPlan& plan);
  /// Applies what a step sampled, in the order of the steps. `updates` last until the next call.
  void postprocess(const StepPlan& plan, const StepOutput& output,
                   std::vector<SequenceUpdate>& updates);

  bool is_finished() const { return num_waiting() + num_running() == 0; }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()) + num_held_choices_; }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  const SchedulerStats& stats() const { return stats_; }
  const std::vector<Sequence*>& running() const { return running_; }

 private:
  /// Computes as many tokens of the sequence as the step still can.
  void schedule_row(StepPlan& plan, Sequence& seq, bool is_decode, bool store = true);
  bool ensure_room(StepPlan& plan, Sequence& seq);
  bool admit(StepPlan& plan, Sequence& seq);
  void fork_choices(StepPlan& plan, Sequence& parent);
  void start_running(StepPlan& plan, Sequence& seq);
  void stop_running(Sequence& seq);
  void preempt(StepPlan& plan, Sequence& seq);
  void commit(Sequence& seq);
  void retire(Sequence& seq);

  EngineConfig config_;
  CacheManager& cache_;
  std::unordered_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  std::deque<Sequence*> waiting_;   // by id
  std::vector<Sequence*> running_;  // by id: the oldest first
  std::vector<int32_t> free_slots_;
  std::vector<std::unique_ptr<Sequence>> retired_;  // finished, kept for the last updates
  int64_t num_held_choices_ = 0;
  uint64_t step_ = 0;
  CacheHit hit_;
  /// The sequence that found too few free blocks last, and how often blocks had been freed then.
  /// Until one is freed it is not tried again: each try reads its whole prompt.
  uint64_t blocked_ = 0;
  int64_t num_freed_ = -1;
  SchedulerStats stats_;
};

}  // namespace nanovllm
