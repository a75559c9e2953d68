#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/output.h"
#include "nanovllm/engine/batch_builder.h"
#include "nanovllm/engine/request_factory.h"
#include "nanovllm/engine/scheduler.h"
#include "nanovllm/runtime/ranks/executor.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "nanovllm/trace/trace.h"

namespace nanovllm {

/// The engine: requests go in, and step() advances all of them. One thread at a time uses it
/// (`threads.one-steps`). AsyncEngine is its front for several threads.
class LLMEngine {
 public:
  /// Loads a checkpoint folder. Throws UserError.
  static LLMEngine load(const std::string& model, const EngineConfig& config);
  /// An engine over any executor. Of setup.model it reads only the vocabulary size and the end
  /// tokens. Without a tokenizer, prompts and answers are only token ids. `trace` may be null.
  LLMEngine(EngineSetup setup, std::unique_ptr<Executor> executor,
            std::shared_ptr<const Tokenizer> tokenizer, std::unique_ptr<Trace> trace = nullptr);
  LLMEngine(const LLMEngine&) = delete;  // its members refer to each other

  /// Makes the requests for add().
  std::shared_ptr<const RequestFactory> request_factory() const { return factory_; }
  /// Adds a request and returns its number, counted from 0.
  uint64_t add(NewRequest request);
  uint64_t add_request(std::vector<int32_t> prompt_token_ids, const SamplingParams& params,
                       const std::string& cache_salt = "") {
    return add(factory_->make(std::move(prompt_token_ids), params, cache_salt));
  }
  /// Ends a request: the next step() returns its tokens so far. Returns false if there is none.
  bool abort(uint64_t request_id) { return end(request_id, FinishReason::kAbort); }
  /// Submits the next step (with async_scheduling, before the previous one is done) and applies the
  /// output of the oldest one. Returns the updates of requests that got tokens or ended, which are
  /// valid until the next call and may be moved from. Throws EngineDead after a step that failed.
  std::span<RequestUpdate> step();
  /// Whether there is nothing left to do. Throws EngineDead after a step that failed.
  bool is_finished() const;

  EngineStats stats() const;
  /// Empties the prefix cache; running requests keep their blocks.
  void reset_prefix_cache() { cache_.reset_prefix_cache(); }
  /// Null if the model has none.
  std::shared_ptr<const Tokenizer> tokenizer() const { return tokenizer_; }
  const EngineSetup& setup() const { return setup_; }

 private:
  void advance();
  /// Submits the plan in spare_.
  void submit();
  /// Ends a request; the next step() returns its last updates.
  bool end(uint64_t request_id, FinishReason reason);
  /// Gives the newest step its late part. Returns false if it has none.
  bool complete();
  /// Waits for the output of the oldest step and applies it.
  void receive(StepTrace& step);
  void apply(const StepPlan& plan, const StepOutput& output, double now);
  RequestUpdate& next_update();

  EngineSetup setup_;
  uint64_t seed_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const RequestFactory> factory_;
  std::unique_ptr<Executor> executor_;
  CacheManager cache_;
  Scheduler scheduler_;
  BatchBuilder builder_;
  std::deque<StepPlan> in_flight_;
  StepPlan spare_;  // a plan whose memory is reused
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::vector<std::pair<std::unique_ptr<Request>, FinishReason>> ended_;  // by end()
  std::vector<SequenceUpdate> changes_;
  std::vector<RequestUpdate> updates_;  // the first num_updates_; others only keep their memory
  size_t num_updates_ = 0;
  uint64_t next_request_ = 0, next_sequence_ = 0;
  double host_seconds_ = 0, mask_seconds_ = 0, device_seconds_ = 0, device_end_ = 0;
  std::unique_ptr<Trace> trace_;  // null: off
  std::string dead_;
};

}  // namespace nanovllm
