#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/output.h"
#include "nanovllm/engine/batch_builder.h"
#include "nanovllm/engine/request.h"
#include "nanovllm/engine/scheduler.h"
#include "nanovllm/runtime/ranks/executor.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

/// What the engine has to know of the model behind its executor; all values resolved.
struct EngineLimits {
  SchedulerConfig scheduler;
  int64_t block_size = 64;
  int64_t num_blocks = 0;  ///< at least what scheduler.max_model_len needs
  int64_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
};
EngineLimits limits_of(const EngineSetup& setup);

/// The engine: requests go in, step() moves all of them on. One thread at a time uses it.
class LLMEngine {
 public:
  /// Loads a checkpoint folder. Throws UserError.
  LLMEngine(const std::string& model, const EngineConfig& config);
  /// Over any executor; `tokenizer` may be null (ids in, ids out). Only async_scheduling,
  /// enable_prefix_caching and seed are read from `config`.
  LLMEngine(const EngineConfig& config, const EngineLimits& limits,
            std::unique_ptr<Executor> executor, std::shared_ptr<const Tokenizer> tokenizer);
  ~LLMEngine();

  /// Takes a prompt; returns its number, counted from 0. Throws UserError for ids outside the
  /// vocabulary, for a prompt that is empty or can never fit, and for parameters out of range;
  /// nothing has changed then. Prompts share cached blocks only with those of the same
  /// `cache_salt`.
  uint64_t add_request(std::vector<int32_t> prompt_token_ids, const SamplingParams& params,
                       UpdateCallback on_update = {}, const std::string& cache_salt = "");
  /// The same for a text, encoded with the special tokens that the tokenizer's post-processor adds.
  uint64_t add_request(const std::string& prompt, const SamplingParams& params,
                       UpdateCallback on_update = {});
  /// Throws what add_request() would throw for these.
  void check_request(std::span<const int32_t> prompt, const SamplingParams& params) const;
  /// Ends a request; the next step() returns it with finish_reason "abort" and what it has. False
  /// if there is none.
  bool abort(uint64_t request_id);
  /// Moves every request on by one step: submits the next one (a step ahead of the device where
  /// async_scheduling is on) and takes in the oldest under way. Returns what grew or ended, valid
  /// until the next call. Throws EngineDead, then and ever after, when a step failed.
  std::span<const RequestUpdate> step();
  /// Whether nothing is left to do. Throws EngineDead after a step that failed.
  bool is_finished() const;

  EngineStats stats() const;
  /// Empties the prefix cache; running requests keep their blocks.
  void reset_prefix_cache() { blocks_.reset_prefix_cache(); }
  /// Null where the model has none.
  std::shared_ptr<const Tokenizer> tokenizer() const { return tokenizer_; }
  const EngineLimits& limits() const { return limits_; }
  /// Null where it did not load the model itself.
  const EngineSetup* setup() const { return setup_.get(); }

 private:
  struct Parts;
  LLMEngine(const EngineConfig& config, Parts parts);
  static Parts load(const std::string& model, const EngineConfig& config);
  void check_prompt(std::span<const int32_t> ids) const;
  void check_sampling(const SamplingParams& params) const;
  std::vector<int32_t> encode_bad_words(const SamplingParams& params) const;
  void take_aborted();
  void advance();
  void apply(const StepPlan& plan, const StepOutput& output);
  RequestUpdate& next_update();

  EngineLimits limits_;
  bool async_scheduling_;
  uint64_t seed_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const EngineSetup> setup_;
  std::unique_ptr<Executor> executor_;
  BlockManager blocks_;
  Scheduler scheduler_;
  BatchBuilder builder_;
  std::deque<StepPlan> in_flight_;
  StepPlan spare_;  // a plan whose memory is reused
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;
  std::vector<uint64_t> aborted_;
  std::vector<std::unique_ptr<Request>> ended_;  // in the last step
  std::vector<SequenceUpdate> changes_;
  std::vector<RequestUpdate> updates_;   // the first num_updates_ count; the rest keep their memory
  std::vector<const Request*> updated_;  // whose they are
  size_t num_updates_ = 0;
  uint64_t next_request_ = 0, next_sequence_ = 0;
  std::string dead_;
};

}  // namespace nanovllm
