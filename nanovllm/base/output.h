#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace nanovllm {

/// One token's natural log-probability under the raw logits, and its rank among all tokens (1: the
/// best).
struct Logprob {
  int32_t id = 0;
  float logprob = 0;
  int32_t rank = 0;
};
/// The sampled (or prompt) token first, then the best K. Empty for a prompt's first token.
using TokenLogprobs = std::vector<Logprob>;

/// What ended an answer: the id in stop_token_ids or the text in stop.
using StopReason = std::variant<int32_t, std::string>;

/// One answer.
struct CompletionOutput {
  std::vector<int32_t> token_ids;  ///< the end token included when one was sampled
  std::string text;
  std::string finish_reason;  ///< stop, length, abort, error; empty while it runs
  std::optional<StopReason> stop_reason;
  std::vector<TokenLogprobs> logprobs;
  std::string error;
};

/// A request's answer (the fields inherited are the first choice's) and what belongs to the prompt.
struct RequestOutput : CompletionOutput {
  uint64_t request_id = 0;
  std::vector<int32_t> prompt_token_ids;
  int64_t num_cached_tokens = 0;  ///< prompt tokens read from the prefix cache at first admission
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<CompletionOutput> outputs;  ///< all choices where n is above 1, else empty
  double arrival_time = 0;                ///< seconds on the steady clock
  double first_token_time = 0;
  double finish_time = 0;

  /// Whether any choice ended with an error.
  bool has_error() const {
    const auto is_error = [](const CompletionOutput& o) { return o.finish_reason == "error"; };
    return is_error(*this) || std::ranges::any_of(outputs, is_error);
  }
};

/// What one step added to an answer. Pieces of one answer come in order.
struct RequestUpdate {
  uint64_t request_id = 0;
  int32_t choice = 0;
  std::vector<int32_t> token_ids;         ///< new ones
  std::string text;                       ///< new; may be empty while a character is incomplete
  std::optional<RequestOutput> finished;  ///< the whole request, once all its answers ended
};

/// Counts since the start.
struct SchedulerStats {
  int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, preemptions = 0;
  int64_t prefix_queries = 0, prefix_hits = 0;  ///< tokens looked up at admissions, tokens found
};

/// The state after a step, and counts since the start.
struct EngineStats : SchedulerStats {
  int64_t num_running = 0, num_waiting = 0;     ///< sequences
  int64_t num_blocks = 0, num_free_blocks = 0;  ///< of the KV cache
};

}  // namespace nanovllm
