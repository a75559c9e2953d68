#include "nanovllm/engine/llm_engine.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <future>
#include <random>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/to_size.h"

namespace nanovllm {

static void describe(const StepPlan& plan, StepTrace& step) {
  for (const ScheduledRow& row : plan.rows)
    step.rows.push_back({row.seq->id, row.start, row.num_tokens, row.is_decode});
  for (const Sequence* seq : plan.setups) step.admitted.push_back(seq->id);
  for (const Sequence* seq : plan.preempted) step.preempted.push_back(seq->id);
}

LLMEngine LLMEngine::load(const std::string& model, const EngineConfig& config) {
  std::unique_ptr<Trace> trace;
  if (!config.trace.empty()) trace = std::make_unique<Trace>(config.trace);
  // Loading a large vocabulary takes 50 ms, so another thread does it meanwhile.
  auto loading = std::async([&]() -> std::shared_ptr<const Tokenizer> {
    if (!path_exists(model + "/tokenizer.json")) return nullptr;
    return Tokenizer::load(model);
  });
  EngineSetup setup;
  std::unique_ptr<Executor> executor = start_ranks(model, config, setup);
  return LLMEngine(std::move(setup), std::move(executor), loading.get(), std::move(trace));
}

LLMEngine::LLMEngine(EngineSetup setup, std::unique_ptr<Executor> executor,
                     std::shared_ptr<const Tokenizer> tokenizer, std::unique_ptr<Trace> trace)
    : setup_(std::move(setup)),
      seed_(setup_.config.seed.value_or(std::random_device()())),
      tokenizer_(std::move(tokenizer)),
      factory_(std::make_shared<const RequestFactory>(setup_, tokenizer_)),
      executor_(std::move(executor)),
      cache_(BlockPool(setup_.num_blocks, setup_.config.block_size,
                       setup_.config.enable_prefix_caching, block_hash, setup_.num_kept_blocks),
             setup_.num_snapshots),
      scheduler_(setup_.config, cache_),
      builder_(setup_.model.vocab_size),
      trace_(std::move(trace)) {
  const EngineConfig& c = setup_.config;
  check(c.max_model_len <= setup_.num_blocks * c.block_size,
        "{} blocks of {} tokens are too few for a sequence of {}", setup_.num_blocks, c.block_size,
        c.max_model_len);
  check(c.max_num_batched_tokens >= c.max_num_seqs,
        "max_num_seqs {} is above max_num_batched_tokens {}", c.max_num_seqs,
        c.max_num_batched_tokens);
}

uint64_t LLMEngine::add(NewRequest added) {
  if (!dead_.empty()) throw EngineDead(dead_);
  const uint64_t id = next_request_++;
  added.request->set_ids(id, next_sequence_);
  for (const std::unique_ptr<Sequence>& seq : added.choices) {
    seq->id = next_sequence_++;
    seq->request_id = id;
    const auto& seed = seq->params->given.seed;
    seq->seed = seed && *seed != kNoSeed ? *seed : XXH64(&id, sizeof id, seed_);
    if (trace_)
      trace_->add(seq->id, id, seq->choice, added.choices.size(), seq->num_prompt_tokens,
                  added.request->arrival_time());
  }
  requests_.emplace(id, std::move(added.request));
  try {
    scheduler_.add(std::move(added.choices));
  } catch (const std::bad_alloc&) {
    end(id, FinishReason::kNoMemory);
  }
  return id;
}

bool LLMEngine::end(uint64_t request_id, FinishReason reason) {
  const auto at = requests_.find(request_id);
  if (at == requests_.end()) return false;
  const Request& request = *ended_.emplace_back(std::move(at->second), reason).first;
  requests_.erase(at);
  for (uint64_t i = 0; i < request.num_choices(); ++i) {
    const uint64_t sequence = request.first_sequence() + i;
    if (Sequence* seq = scheduler_.find(sequence)) scheduler_.finish(*seq, reason);
    if (trace_) trace_->end(sequence, steady_seconds(), reason_name(reason));
  }
  return true;
}

bool LLMEngine::is_finished() const {
  if (!dead_.empty()) throw EngineDead(dead_);
  return scheduler_.is_finished() && in_flight_.empty() && ended_.empty();
}

std::span<RequestUpdate> LLMEngine::step() {
  if (!dead_.empty()) throw EngineDead(dead_);
  try {
    num_updates_ = 0;
    for (const auto& [request, reason] : std::exchange(ended_, {}))
      request->end_all(reason, [&]() -> RequestUpdate& { return next_update(); });
    advance();
  } catch (const std::exception& e) {
    dead_ = fmt::format("the engine stopped: {}", what_of(e));
    throw EngineDead(dead_);
  }
  return std::span(updates_).first(num_updates_);
}

void LLMEngine::advance() {
  StepTrace step;
  step.start = steady_seconds();
  scheduler_.schedule(spare_);
  step.scheduled = steady_seconds();
  for (const Sequence* seq : spare_.setups)
    requests_.at(seq->request_id)->set_scheduled(step.scheduled);
  if (trace_) describe(spare_, step);
  const bool submitted = !spare_.empty();
  if (submitted) {
    step.submitted_step = spare_.step;
    submit();
    in_flight_.push_back(std::exchange(spare_, {}));
  }
  const bool stays = submitted && setup_.config.async_scheduling;
  if (submitted && !stays) complete();
  step.submitted = step.received = steady_seconds();
  if (in_flight_.size() > (stays ? 1U : 0U)) receive(step);
  else
    check(submitted || scheduler_.is_finished(), "no request can run, and {} wait",
          scheduler_.num_waiting() + scheduler_.num_running());
  step.masks = steady_seconds();
  // What may be drawn depends on the tokens that were received just now.
  step.processed = stays && complete() ? steady_seconds() : step.masks;
  mask_seconds_ += step.processed - step.masks;
  host_seconds_ += (step.processed - step.received) + (step.submitted - step.start);
  if (trace_) trace_->step(step, stats());
}

void LLMEngine::submit() {
  bool has_memory = true;
  try {
    executor_->submit(builder_.build(spare_));
  } catch (const std::bad_alloc&) {
    has_memory = false;
    executor_->submit(builder_.build(spare_, /*with_lists=*/false));
  }
  for (const ScheduledRow& row : spare_.rows)
    row.seq->num_blocks_sent = std::ssize(row.seq->block_table);
  // The requests whose lists did not fit in memory end; all others continue.
  for (const Sequence* seq : spare_.setups)
    if (!has_memory && seq->params->has_lists()) end(seq->request_id, FinishReason::kNoMemory);
}

bool LLMEngine::complete() {
  const StepPlan& newest = in_flight_.back();
  if (std::ranges::none_of(newest.outputs, &ScheduledOutput::is_late)) return false;
  executor_->complete(builder_.build_late(newest));
  return true;
}

void LLMEngine::receive(StepTrace& step) {
  const StepPlan& plan = in_flight_.front();
  const StepOutput& output = executor_->wait();
  step.received = steady_seconds();
  step.received_step = plan.step;
  // A device computes one step at a time, in their order (`order.steps`).
  step.device_start = std::max(output.submit_time, device_end_);
  step.device_end = device_end_ = output.done_time;
  device_seconds_ += step.device_end - step.device_start;
  apply(plan, output, step.received);
  if (trace_)
    for (const SequenceUpdate& change : changes_)
      step.drawn.push_back({change.seq->id, change.seq->status == SequenceStatus::kRunning,
                            reason_name(change.seq->finish_reason)});
  spare_ = std::move(in_flight_.front());
  in_flight_.pop_front();
}

void LLMEngine::apply(const StepPlan& plan, const StepOutput& output, double now) {
  check(output.values.size() == plan.outputs.size(), "step {}: {} values, {} expected", plan.step,
        output.values.size(), plan.outputs.size());
  // This comes first: a sequence may end in this step, and then postprocess() removes it.
  std::span<const Logprob> rest = output.logprobs;
  for (size_t i = 0; i < plan.outputs.size(); ++i) {
    const OutputValue& value = output.values[i];
    const auto count = to_size(value.num_logprobs);
    const auto request = requests_.find(plan.outputs[i].seq->request_id);
    if (value.kind == OutputKind::kLogprobs && request != requests_.end())
      request->second->set_prompt_logprobs(value.position, rest.first(count));
    rest = rest.subspan(count);
  }
  scheduler_.postprocess(plan, output, changes_);
  for (const SequenceUpdate& change : changes_) {
    const auto at = requests_.find(change.seq->request_id);
    RequestUpdate& update = next_update();
    if (at->second->apply(change, now, update)) scheduler_.finish(*change.seq, FinishReason::kStop);
    if (update.finished) requests_.erase(at);
  }
}

RequestUpdate& LLMEngine::next_update() {
  if (num_updates_ == updates_.size()) updates_.emplace_back();
  return updates_[num_updates_++];
}

EngineStats LLMEngine::stats() const {
  EngineStats stats{scheduler_.stats(), cache_.blocks().stats()};
  stats.num_running = scheduler_.num_running();
  stats.num_waiting = scheduler_.num_waiting();
  stats.num_blocks = cache_.blocks().num_blocks();
  stats.num_free_blocks = cache_.blocks().num_free();
  stats.host_seconds = host_seconds_;
  stats.mask_seconds = mask_seconds_;
  stats.compile_seconds = factory_->compile_seconds();
  stats.device_seconds = device_seconds_;
  return stats;
}

}  // namespace nanovllm
