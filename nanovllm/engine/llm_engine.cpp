#include "nanovllm/engine/llm_engine.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <future>
#include <random>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/bad_words.h"

namespace nanovllm {

namespace {

void describe(const StepPlan& plan, StepTrace& step) {
  for (const ScheduledRow& row : plan.rows)
    step.rows.push_back({row.seq->id, row.start, row.num_tokens, row.is_decode});
  for (const Sequence* seq : plan.setups) step.admitted.push_back(seq->id);
  for (const Sequence* seq : plan.preempted) step.preempted.push_back(seq->id);
}

}  // namespace

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
  const std::shared_ptr<const Tokenizer> tokenizer = loading.get();
  std::vector<int32_t>& end_tokens = setup.model.eos_token_ids;
  if (tokenizer != nullptr && end_tokens.empty())
    if (const auto eos = tokenizer->eos_token_id()) end_tokens.push_back(*eos);
  return LLMEngine(std::move(setup), std::move(executor), tokenizer, std::move(trace));
}

LLMEngine::LLMEngine(EngineSetup setup, std::unique_ptr<Executor> executor,
                     std::shared_ptr<const Tokenizer> tokenizer, std::unique_ptr<Trace> trace)
    : setup_(std::move(setup)),
      seed_(setup_.config.seed.value_or(std::random_device()())),
      tokenizer_(std::move(tokenizer)),
      executor_(std::move(executor)),
      blocks_(setup_.num_blocks, setup_.config.block_size, setup_.config.enable_prefix_caching,
              block_hash, setup_.num_kept_blocks),
      scheduler_(setup_.config, blocks_),
      trace_(std::move(trace)) {
  const EngineConfig& c = setup_.config;
  check(c.max_model_len <= setup_.num_blocks * c.block_size,
        "{} blocks of {} tokens are too few for a sequence of {}", setup_.num_blocks, c.block_size,
        c.max_model_len);
  check(c.max_num_batched_tokens >= c.max_num_seqs,
        "max_num_seqs {} is above max_num_batched_tokens {}", c.max_num_seqs,
        c.max_num_batched_tokens);
}

void LLMEngine::check_prompt(std::span<const int32_t> ids) const {
  require(!ids.empty(), "the prompt is empty; it needs at least one token");
  const int64_t limit = setup_.config.max_model_len;
  if (static_cast<int64_t>(ids.size()) >= limit)
    throw PromptTooLong(fmt::format(
        "the prompt has {} tokens; with max_model_len {}, the maximum context length, it may have "
        "at most {}",
        ids.size(), limit, limit - 1));
  check_ids("the prompt", ids);
}

void LLMEngine::check_ids(const char* where, std::span<const int32_t> ids) const {
  for (const int32_t id : ids)
    require(id >= 0 && id < setup_.model.vocab_size,
            "{} contains token id {}; the vocabulary has {} ids, 0 to {}", where, id,
            setup_.model.vocab_size, setup_.model.vocab_size - 1);
}

void LLMEngine::check_sampling(const SamplingParams& params) const {
  params.validate();
  require(tokenizer_ != nullptr || (params.stop.empty() && params.bad_words.empty()),
          "stop and bad_words need a tokenizer; the model has no tokenizer.json");
  for (const std::vector<std::string>* texts : {&params.stop, &params.bad_words})
    for (const std::string& text : *texts) require_utf8(text, "a string in stop or bad_words");
  require(params.detokenize || params.stop.empty(), "stop needs detokenize to be true");
  check_ids("stop_token_ids", params.stop_token_ids);
  for (const auto& [id, bias] : params.logit_bias) check_ids("logit_bias", {&id, 1});
  if (params.allowed_token_ids) check_ids("allowed_token_ids", *params.allowed_token_ids);
}

NewRequest LLMEngine::prepare(std::vector<int32_t> prompt, const SamplingParams& given,
                              const std::string& cache_salt) const {
  check_prompt(prompt);
  check_sampling(given);
  auto params = std::make_shared<SamplingParams>(given);
  // Bounded by the context, so that no later sum with these numbers can overflow.
  params->max_tokens = std::min(params->max_tokens,
                                setup_.config.max_model_len - static_cast<int64_t>(prompt.size()));
  params->min_tokens = std::min(params->min_tokens, params->max_tokens);
  if (params->logprobs) params->logprobs = std::min(*params->logprobs, setup_.model.vocab_size);
  if (params->prompt_logprobs)
    params->prompt_logprobs = std::min(*params->prompt_logprobs, setup_.model.vocab_size);
  auto stop_ids = std::make_shared<std::vector<int32_t>>(params->stop_token_ids);
  if (!params->ignore_eos)
    stop_ids->insert(stop_ids->end(), setup_.model.eos_token_ids.begin(),
                     setup_.model.eos_token_ids.end());
  std::ranges::sort(*stop_ids);
  std::erase_if(*stop_ids, [&](int32_t id) { return id < 0 || id >= setup_.model.vocab_size; });

  std::shared_ptr<const std::vector<int32_t>> bad_words;
  if (!given.bad_words.empty())
    bad_words = std::make_shared<const std::vector<int32_t>>(
        encode_bad_words(given.bad_words, *tokenizer_));

  NewRequest made = {
      std::make_unique<Request>(prompt, params, tokenizer_.get(), setup_.model.vocab_size), {}};
  for (int64_t choice = 0; choice < params->n; ++choice) {
    auto seq = std::make_unique<Sequence>();
    seq->choice = static_cast<int32_t>(choice);
    seq->params = params;
    seq->stop_ids = stop_ids;
    seq->bad_words = bad_words;
    seq->cache_salt = cache_salt.empty() ? 0 : XXH64(cache_salt.data(), cache_salt.size(), 1);
    seq->token_ids = prompt;
    seq->num_prompt_tokens = static_cast<int64_t>(prompt.size());
    made.choices.push_back(std::move(seq));
  }
  return made;
}  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the analyzer loses sight of made.request

uint64_t LLMEngine::add(NewRequest added) {
  if (!dead_.empty()) throw EngineDead(dead_);
  const uint64_t id = next_request_++;
  added.request->set_ids(id, next_sequence_);
  for (const std::unique_ptr<Sequence>& seq : added.choices) {
    seq->id = next_sequence_++;
    seq->request_id = id;
    const auto& seed = seq->params->seed;
    seq->seed = seed && *seed != kNoSeed ? *seed : XXH64(&id, sizeof id, seed_);
    if (trace_)
      trace_->add(seq->id, id, seq->choice, added.choices.size(), seq->num_prompt_tokens,
                  added.request->arrival_time());
  }
  scheduler_.add(std::move(added.choices));
  requests_.emplace(id, std::move(added.request));
  return id;
}

bool LLMEngine::abort(uint64_t request_id) {
  const auto at = requests_.find(request_id);
  if (at == requests_.end() || at->second->is_aborted()) return false;
  const Request& request = *at->second;
  for (uint64_t i = 0; i < request.num_choices(); ++i) {
    const uint64_t sequence = request.first_sequence() + i;
    if (Sequence* seq = scheduler_.find(sequence)) scheduler_.finish(*seq, FinishReason::kAbort);
    if (trace_) trace_->end(sequence, steady_seconds(), reason_name(FinishReason::kAbort));
  }
  at->second->set_aborted();
  aborted_.push_back(request_id);
  return true;
}

bool LLMEngine::is_finished() const {
  if (!dead_.empty()) throw EngineDead(dead_);
  return scheduler_.is_finished() && in_flight_.empty() && aborted_.empty();
}

std::span<RequestUpdate> LLMEngine::step() {
  if (!dead_.empty()) throw EngineDead(dead_);
  try {
    num_updates_ = 0;
    for (const uint64_t id : std::exchange(aborted_, {}))
      requests_.extract(id).mapped()->abort([&]() -> RequestUpdate& { return next_update(); });
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
    executor_->submit(builder_.build(spare_));
    in_flight_.push_back(std::exchange(spare_, {}));
  }
  step.submitted = step.received = steady_seconds();
  const size_t may_stay = submitted && setup_.config.async_scheduling ? 1 : 0;
  if (in_flight_.size() > may_stay) receive(step);
  else
    check(submitted || scheduler_.is_finished(), "no request can run, and {} wait",
          scheduler_.num_waiting() + scheduler_.num_running());
  step.processed = steady_seconds();
  host_seconds_ += (step.processed - step.received) + (step.submitted - step.start);
  if (trace_) trace_->step(step, stats());
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
  // This comes first: a sequence may end in this step, and then postprocess() removes it.
  std::span<const Logprob> entries = output.prompt_logprobs;
  for (const PromptLogprobOutput& p : output.prompt) {
    const auto count = static_cast<size_t>(p.num_logprobs);
    const auto request = requests_.find(plan.rows[static_cast<size_t>(p.row)].seq->request_id);
    if (request != requests_.end())
      request->second->set_prompt_logprobs(p.position, entries.first(count));
    entries = entries.subspan(count);
  }
  scheduler_.postprocess(plan, output, changes_);
  for (const SequenceUpdate& change : changes_) {
    const auto at = requests_.find(change.seq->request_id);
    RequestUpdate& update = next_update();
    if (at->second->apply(change, output, now, update))
      scheduler_.finish(*change.seq, FinishReason::kStop);
    if (update.finished) requests_.erase(at);
  }
}

RequestUpdate& LLMEngine::next_update() {
  if (num_updates_ == updates_.size()) updates_.emplace_back();
  return updates_[num_updates_++];
}

EngineStats LLMEngine::stats() const {
  EngineStats stats{scheduler_.stats(), blocks_.stats()};
  stats.num_running = scheduler_.num_running();
  stats.num_waiting = scheduler_.num_waiting();
  stats.num_blocks = blocks_.num_blocks();
  stats.num_free_blocks = blocks_.num_free();
  stats.host_seconds = host_seconds_;
  stats.device_seconds = device_seconds_;
  return stats;
}

}  // namespace nanovllm
