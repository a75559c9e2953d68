#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <random>

#include "block_pool_check.h"
#include "fake_executor.h"
#include "nanovllm/base/check.h"
#include "nanovllm/engine/batch_builder.h"
#include "nanovllm/engine/scheduler.h"

namespace nanovllm::testing {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kSteps = 50'000;
#else
constexpr int64_t kSteps = 4'000'000;
#endif

uint64_t no_hash(uint64_t, std::span<const int32_t>) { return 7; }
uint64_t poor_hash(uint64_t previous, std::span<const int32_t> ids) {
  return block_hash(previous, ids) % 5;
}

struct Expected {
  std::vector<int32_t> token_ids;
  FinishReason reason = FinishReason::kNone;
};

/// Allows a random set of tokens, which depends on all tokens of the answer so far.
class RandomConstraint : public Constraint {
 public:
  explicit RandomConstraint(uint64_t seed) : chain_(seed) {}
  void accept(int32_t id) override {
    const int32_t word = mask();
    check(has_bit({&word, 1}, id), "token {} is not allowed", id);
    chain_ = FakeModel::extend(chain_, id);
  }
  void fill(std::span<int32_t> bits) const override { bits[0] = mask(); }

 private:
  int32_t mask() const { return static_cast<int32_t>(mix(chain_, 3) | (1U << chain_ % 2)); }
  uint64_t chain_;
};

/// One engine of random sizes with random requests and aborts. Each answer is compared with the one
/// that the fake model gives to this request alone.
class Episode {
 public:
  Episode(uint64_t seed, bool step_ahead) : random_(seed), step_ahead_(step_ahead) {
    const int64_t block_sizes[] = {1, 2, 3, 4, 5, 7, 16};
    block_size_ = block_sizes[below(7)];
    num_blocks_ = 2 + below(below(2) == 0 ? 6 : 40);
    config_.max_model_len = std::min<int64_t>(2 + below(60), num_blocks_ * block_size_);
    config_.max_model_len = std::max<int64_t>(config_.max_model_len, 2);
    config_.max_num_seqs = 1 + below(8);
    config_.max_num_batched_tokens = config_.max_num_seqs + below(below(2) == 0 ? 4 : 64);
    model_.vocab_size = 2 + static_cast<int32_t>(below(12));
    model_.not_finite_every = below(4) == 0 ? 50 : 0;
    const BlockHashFunction hashes[] = {block_hash, block_hash, no_hash, poor_hash};
    // A third of the models have no recurrent state, and some of the others no memory for
    // snapshots.
    std::optional<int64_t> num_snapshots;
    if (below(3) != 0) num_snapshots = below(below(2) == 0 ? 4 : 40);
    cache_ = std::make_unique<CacheManager>(
        BlockPool(num_blocks_, block_size_, below(5) != 0, hashes[below(4)]), num_snapshots);
    scheduler_ = std::make_unique<Scheduler>(config_, *cache_);
    executor_ = std::make_unique<FakeExecutor>(model_, config_.max_num_seqs, num_blocks_,
                                               block_size_, config_.max_model_len, num_snapshots);
  }

  int64_t run() {
    const int64_t num_requests = 1 + below(40);
    const int64_t arrival_every = 1 + below(6);
    int64_t added = 0, steps = 0;
    while (added < num_requests || !scheduler_->is_finished() || !plans_.empty()) {
      while (added < num_requests && below(arrival_every) == 0) {
        add();
        ++added;
      }
      if (below(20) == 0) abort_one();
      step();
      ++steps;
      // Each step computes at least one token of the oldest sequence, or waits for a submitted
      // step.
      check(steps < 1000 + 10 * num_requests * 4 * config_.max_model_len, "no end after {} steps",
            steps);
    }
    check(live_.empty(), "{} sequences never ended", live_.size());
    check(cache_->blocks().num_free() == num_blocks_, "{} of {} blocks are free at the end",
          cache_->blocks().num_free(), num_blocks_);
    return steps;
  }

  int64_t num_preemptions() const { return scheduler_->stats().preemptions; }
  int64_t num_hits() const { return scheduler_->stats().prefix_hits; }
  int64_t num_late() const { return num_late_; }
  /// From a random step on the ranks are dead.
  void end_ranks() { executor_->fail_at(1 + below(100)); }
  /// How many states were restored, saved and forked.
  const std::array<int64_t, 3>& num_copies() const { return num_copies_; }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  void add() {
    auto params = std::make_shared<RequestParams>();
    const int64_t max_tokens = 1 + below(below(3) == 0 ? 2 : 40);
    if (below(3) != 0) params->stop_ids.push_back(0);
    const int64_t length = 1 + below(config_.max_model_len - 1);
    // Few prefixes, so that many prompts share 0, some or all of their tokens.
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    const uint64_t family = random_() % 3;
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(mix(family, i) % 5);
    if (below(2) == 0) prompt[static_cast<size_t>(below(length))] = 6;
    const uint64_t seed = below(2) == 0 ? 1 : random_();
    const auto salt = random_() % 2 == 0 ? nullptr : std::make_shared<const std::string>("tenant");
    const int64_t n = below(3) == 0 ? 1 + below(5) : 1;
    const bool is_constrained = below(4) == 0;
    std::vector<std::unique_ptr<Sequence>> choices;
    std::vector<uint64_t> ids;
    for (int64_t choice = 0; choice < n; ++choice) {
      auto seq = std::make_unique<Sequence>();
      seq->id = next_id_++;
      seq->choice = static_cast<int32_t>(choice);
      seq->params = params;
      seq->max_tokens = max_tokens;
      seq->seed = seed;
      seq->cache_salt = salt;
      seq->token_ids = prompt;
      seq->num_prompt_tokens = length;
      if (is_constrained) seq->constraint = std::make_unique<RandomConstraint>(seed);
      live_[seq->id] = seq.get();
      expected_[seq->id] = alone(*seq);
      ids.push_back(seq->id);
      choices.push_back(std::move(seq));
    }
    requests_.push_back(ids);
    scheduler_->add(std::move(choices));
  }

  Expected alone(const Sequence& seq) const {
    Expected e;
    e.token_ids = seq.token_ids;
    uint64_t chain = 0;
    for (const int32_t token : seq.token_ids) chain = FakeModel::extend(chain, token);
    RandomConstraint constraint(seq.seed);
    while (e.reason == FinishReason::kNone) {
      if (!model_.is_finite(chain)) {
        e.reason = FinishReason::kError;
        break;
      }
      int32_t token = model_.draw(chain, seq.seed, seq.choice);
      if (seq.constraint) {
        int32_t mask = 0;
        constraint.fill({&mask, 1});
        token = model_.draw(chain, seq.seed, seq.choice, {&mask, 1});
        constraint.accept(token);
      }
      e.token_ids.push_back(token);
      chain = FakeModel::extend(chain, token);
      const auto length = static_cast<int64_t>(e.token_ids.size());
      if (std::ranges::count(seq.params->stop_ids, token) > 0) e.reason = FinishReason::kStop;
      else if (length - seq.num_prompt_tokens == seq.max_tokens || length == config_.max_model_len)
        e.reason = FinishReason::kLength;
    }
    return e;
  }

  void abort_one() {
    if (requests_.empty()) return;
    for (const uint64_t id :
         requests_[static_cast<size_t>(below(static_cast<int64_t>(requests_.size())))]) {
      const auto at = live_.find(id);
      if (at == live_.end()) continue;
      scheduler_->finish(*at->second, FinishReason::kAbort);
      live_.erase(at);
    }
    check_blocks();
  }

  void step() {
    StepPlan plan;
    scheduler_->schedule(plan);
    check_blocks();
    check(plan.num_tokens <= config_.max_num_batched_tokens, "{} tokens in a step",
          plan.num_tokens);
    const bool submitted = !plan.empty();
    if (submitted) {
      check_writes(plan);
      for (const StateCopy& copy : plan.state_copies) ++num_copies_[static_cast<size_t>(copy.kind)];
      executor_->submit(builder_.build(plan));
      plans_.push_back(std::move(plan));
    }
    // order.late: masks depend on the tokens of the step before, if that was submitted.
    const bool stays = submitted && step_ahead_;
    if (submitted && !stays) complete();
    if (plans_.size() > (submitted && step_ahead_ ? 1u : 0u)) {
      scheduler_->postprocess(plans_.front(), executor_->wait(), updates_);
      plans_.pop_front();
      for (const SequenceUpdate& update : updates_)
        if (update.seq->is_finished()) compare(*update.seq);
      check_blocks();
    } else {
      check(submitted || scheduler_->is_finished(),
            "no step can be submitted, but the engine is not finished");
    }
    if (stays) complete();
  }

  void complete() {
    if (std::ranges::none_of(plans_.back().outputs, &ScheduledOutput::is_late)) return;
    ++num_late_;
    executor_->complete(builder_.build_late(plans_.back()));
  }

  void compare(const Sequence& seq) {
    const Expected& e = expected_.at(seq.id);
    check(seq.finish_reason == e.reason, "sequence {} ended with {}, not {}", seq.id,
          static_cast<int>(seq.finish_reason), static_cast<int>(e.reason));
    check(seq.token_ids == e.token_ids, "sequence {} has other tokens than alone", seq.id);
    check(*seq.num_cached_tokens < seq.num_prompt_tokens, "sequence {}: {} cached", seq.id,
          *seq.num_cached_tokens);
    check(live_.erase(seq.id) == 1, "sequence {} ended twice", seq.id);
  }

  void check_blocks() {
    const std::vector<const Sequence*> holders(scheduler_->running().begin(),
                                               scheduler_->running().end());
    BlockPoolState::validate(cache_->blocks(), holders);
    for (const Sequence* seq : holders)
      check(seq->slot >= 0 && seq->slot < config_.max_num_seqs, "slot {}", seq->slot);
    check(static_cast<int64_t>(holders.size()) <= config_.max_num_seqs, "{} run", holders.size());
  }

  // A block that a row writes belongs to no other sequence, except to those that were admitted in
  // this step, share the block and start after it.
  void check_writes(const StepPlan& plan) {
    std::map<int32_t, std::vector<const Sequence*>> holders;
    for (const Sequence* seq : scheduler_->running())
      for (const int32_t id : seq->block_table) holders[id].push_back(seq);
    for (const ScheduledRow& row : plan.rows) {
      if (!row.store) continue;
      for (int64_t i = row.start / block_size_; i <= (row.start + row.num_tokens - 1) / block_size_;
           ++i)
        for (const Sequence* other : holders[row.seq->block_table[static_cast<size_t>(i)]]) {
          if (other == row.seq) continue;
          const auto at = std::ranges::find(plan.rows, other, &ScheduledRow::seq);
          const bool forked = std::ranges::any_of(
              plan.outputs, [&](const ScheduledOutput& s) { return s.seq == other && s.forked; });
          const bool behind =
              at != plan.rows.end() && (at->start >= (i + 1) * block_size_ || !at->store);
          check(std::ranges::count(plan.setups, other) == 1 && (forked || behind),
                "step {}: sequence {} writes a block of sequence {}", plan.step, row.seq->id,
                other->id);
        }
    }
  }

  std::mt19937_64 random_;
  bool step_ahead_;
  int64_t block_size_ = 1, num_blocks_ = 1;
  EngineConfig config_;
  FakeModel model_;
  std::unique_ptr<CacheManager> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FakeExecutor> executor_;
  BatchBuilder builder_{32};  // masks have one word
  std::deque<StepPlan> plans_;
  int64_t num_late_ = 0;
  std::vector<SequenceUpdate> updates_;
  std::map<uint64_t, Sequence*> live_;
  std::map<uint64_t, Expected> expected_;
  std::vector<std::vector<uint64_t>> requests_;
  uint64_t next_id_ = 0;
  std::array<int64_t, 3> num_copies_ = {};
};

class SchedulerRandom : public ::testing::TestWithParam<bool> {};

TEST_P(SchedulerRandom, EveryOrderOfEventsGivesEachRequestItsAnswer) {
  int64_t steps = 0, preemptions = 0, hits = 0, late = 0, deaths = 0;
  std::array<int64_t, 3> copies = {};
  for (uint64_t seed = 0; steps < kSteps / 2; ++seed) {
    SCOPED_TRACE(seed);
    Episode episode(seed, GetParam());
    const bool is_mortal = seed % 20 == 7;
    if (is_mortal) episode.end_ranks();
    try {
      steps += episode.run();
    } catch (const std::runtime_error& e) {
      if (!is_mortal) FAIL() << "seed " << seed << ": " << e.what();
      ++deaths;
    } catch (const std::exception& e) {
      FAIL() << "seed " << seed << ": " << e.what();
    }
    preemptions += episode.num_preemptions();
    hits += episode.num_hits();
    late += episode.num_late();
    for (size_t kind = 0; kind < 3; ++kind) copies[kind] += episode.num_copies()[kind];
  }
  EXPECT_GT(preemptions, steps / 100);
  EXPECT_GT(hits, steps / 10);
  EXPECT_GT(late, steps / 10);
  EXPECT_GT(deaths, 0);
  for (const int64_t num : copies) EXPECT_GT(num, steps / 100);
  std::printf(
      "%ld steps, %ld with a late part, %ld preemptions, %ld prefix-cache hits; states: %ld "
      "restored, %ld saved, %ld forked; %ld deaths\n",
      steps, late, preemptions, hits, copies[0], copies[1], copies[2], deaths);
}

INSTANTIATE_TEST_SUITE_P(StepAhead, SchedulerRandom, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "on" : "off"; });

}  // namespace
}  // namespace nanovllm::testing
