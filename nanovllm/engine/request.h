#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/base/output.h"
#include "nanovllm/base/to_size.h"
#include "nanovllm/engine/request_params.h"
#include "nanovllm/engine/scheduler.h"
#include "nanovllm/text/stop_strings.h"
#include "nanovllm/text/tokenizer/detokenizer.h"

namespace nanovllm {

/// The finish_reason of CompletionOutput.
const char* reason_name(FinishReason reason);

/// A request while its answers are generated: turns tokens into texts and into a RequestOutput.
class Request {
 public:
  /// `tokenizer` may be null: texts stay empty. `vocab_size` is the model's.
  Request(std::vector<int32_t> prompt, std::shared_ptr<const RequestParams> params,
          std::shared_ptr<const Tokenizer> tokenizer, int64_t vocab_size);
  /// Its first step was scheduled at this time. Only the first call counts.
  void set_scheduled(double at) {
    if (output_.scheduled_time == 0) output_.scheduled_time = at;
  }
  // These two are called before the request runs.
  /// The answers continue the text of the prompt: Detokenizer::continue_text().
  void continue_text();
  /// The texts of the answers contain these special tokens: Detokenizer::show().
  void show_special_tokens(const std::vector<int32_t>& ids);
  /// Its choices are the sequences `first_sequence` and those that follow.
  void set_ids(uint64_t id, uint64_t first_sequence) {
    output_.request_id = id;
    first_sequence_ = first_sequence;
  }

  /// Applies what a step changed in one of the sequences, and fills `update`. Returns true if a
  /// stop string ended the answer; the caller then finishes the sequence.
  bool apply(const SequenceUpdate& change, double now, RequestUpdate& update);
  /// Log-probabilities of the prompt token at `position`.
  void set_prompt_logprobs(int64_t position, std::span<const Logprob> entries) {
    output_.prompt_logprobs.at(to_size(position)) = {entries.begin(), entries.end()};
  }
  /// Ends the answers that still run, whose sequences are finished. Each gets a next_update().
  void end_all(FinishReason reason, const std::function<RequestUpdate&()>& next_update);

  uint64_t id() const { return output_.request_id; }
  double arrival_time() const { return output_.arrival_time; }
  uint64_t first_sequence() const { return first_sequence_; }
  uint64_t num_choices() const { return choices_.size(); }

 private:
  struct Choice {
    CompletionOutput output;
    std::optional<Detokenizer> detokenizer;
    std::optional<StopStrings> stop_strings;
  };
  void add_text(Choice& choice, const std::string& piece, std::string& new_text);
  void end(Choice& choice, FinishReason reason, RequestUpdate& update);

  std::shared_ptr<const RequestParams> params_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  const int64_t vocab_size_;
  uint64_t first_sequence_ = 0;
  std::vector<Choice> choices_;
  size_t num_running_;
  RequestOutput output_;  // all but the answers
};

}  // namespace nanovllm
