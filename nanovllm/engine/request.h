#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/output.h"
#include "nanovllm/engine/scheduler.h"
#include "nanovllm/engine/stop_strings.h"
#include "nanovllm/text/tokenizer/detokenizer.h"

namespace nanovllm {

/// Called in LLMEngine::step() for each new piece of an answer. It may add and abort requests; an
/// exception leaves step().
using UpdateCallback = std::function<void(const RequestUpdate&)>;

/// A request while its answers grow: turns tokens into text and log-probabilities, and both into a
/// RequestOutput.
class Request {
 public:
  /// `tokenizer` may be null: texts stay empty.
  Request(uint64_t id, std::vector<int32_t> prompt, std::shared_ptr<const SamplingParams> params,
          const Tokenizer* tokenizer, UpdateCallback on_update);

  /// Takes in what a step did to one of the sequences; fills `update`. `output` is the step's. True
  /// where a stop string ended the answer: the sequence is to be finished.
  bool apply(const SequenceUpdate& change, const StepOutput& output, RequestUpdate& update);
  /// Log-probabilities of the prompt token at `position`.
  void set_prompt_logprobs(int64_t position, std::span<const LogprobEntry> entries);
  /// Ends all answers that still run. Their sequences must be finished.
  void abort(RequestUpdate& update);

  uint64_t id() const { return output_.request_id; }
  const std::vector<uint64_t>& sequence_ids() const { return sequence_ids_; }
  void add_sequence(uint64_t id) { sequence_ids_.push_back(id); }
  const UpdateCallback& on_update() const { return on_update_; }
  bool is_aborted() const { return is_aborted_; }
  void set_aborted() { is_aborted_ = true; }

 private:
  struct Choice {
    CompletionOutput output;
    std::optional<Detokenizer> detokenizer;
    std::optional<StopStrings> stop_strings;
  };
  void add_text(Choice& choice, const std::string& piece, std::string& new_text);
  void end(Choice& choice, FinishReason reason, std::string& new_text);
  void finish_request(RequestUpdate& update);

  std::shared_ptr<const SamplingParams> params_;
  const Tokenizer* tokenizer_;
  UpdateCallback on_update_;
  std::vector<uint64_t> sequence_ids_;
  std::vector<Choice> choices_;
  size_t num_running_;
  bool is_aborted_ = false;
  RequestOutput output_;  // all but the answers
};

}  // namespace nanovllm
