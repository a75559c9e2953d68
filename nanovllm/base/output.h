#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace nanovllm {

/// The natural log-probability of a token, in the distribution that EngineConfig::logprobs_mode
/// names, and the rank of the token among all tokens (1: the best).
struct Logprob {
  int32_t id = 0;
  float logprob = 0;
  int32_t rank = 0;
};
/// The log-probabilities at one position: first the sampled (or prompt) token, then the best K
/// tokens. Empty for the first token of a prompt.
using TokenLogprobs = std::vector<Logprob>;

/// The reason why an answer stopped: a token id from stop_token_ids, or a text from stop.
using StopReason = std::variant<int32_t, std::string>;

/// One answer to a prompt.
struct CompletionOutput {
  std::vector<int32_t> token_ids;  ///< including the end token, if one was sampled
  std::string text;  ///< without a text of stop that ended it, and without special tokens unless
                     ///< skip_special_tokens is off
  std::string finish_reason;  ///< stop, length, abort or error; empty while the answer grows
  std::optional<StopReason> stop_reason;
  std::vector<TokenLogprobs> logprobs;
  /// The sum of the sampled tokens' log-probabilities; only with SamplingParams::logprobs.
  std::optional<double> cumulative_logprob;
  std::string error;  ///< the reason, if finish_reason is error
  /// Whether the request's own parameters (allowed_token_ids, bad_words, min_tokens) caused the
  /// error.
  bool is_request_at_fault = false;
};

/// The result of a request. The inherited fields are those of the first choice.
struct RequestOutput : CompletionOutput {
  uint64_t request_id = 0;
  std::vector<int32_t> prompt_token_ids;
  int64_t num_cached_tokens = 0;  ///< prompt tokens found in the prefix cache at first admission
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<CompletionOutput> outputs;  ///< all n choices, the first one included
  double arrival_time = 0;                ///< seconds on the steady clock
  double scheduled_time = 0;              ///< when its first step was scheduled; 0: never
  double first_token_time = 0;            ///< when the first choice had a token; 0: never
  double finish_time = 0;

  /// Whether any choice ended with an error.
  bool has_error() const {
    const auto is_error = [](const CompletionOutput& o) { return o.finish_reason == "error"; };
    return is_error(*this) || std::ranges::any_of(outputs, is_error);
  }
};

/// The tokens and the text that one step added to an answer. The updates of one answer are in
/// order.
struct RequestUpdate {
  uint64_t request_id = 0;
  int32_t choice = 0;
  double time = 0;                 ///< when the step's output was read, on the steady clock
  std::vector<int32_t> token_ids;  ///< the new tokens
  std::string text;                ///< the new text; empty while a character is incomplete
  TokenLogprobs logprobs;          ///< those of the new token, if they were asked for
  std::string finish_reason;       ///< see CompletionOutput; empty unless the answer has ended
  std::optional<StopReason> stop_reason;
  /// The whole result, once all answers of the request have ended. It is a pointer, because many
  /// updates may wait for a slow reader, and only the last one of a request has a result.
  std::unique_ptr<RequestOutput> finished;

  /// Clears the update for another answer, and keeps the memory.
  void begin(uint64_t id, int32_t its_choice, double now) {
    request_id = id;
    choice = its_choice;
    time = now;
    token_ids.clear();
    text.clear();
    logprobs.clear();
    finish_reason.clear();
    stop_reason.reset();
    finished.reset();
  }
};

/// Counts since the engine was started.
struct SchedulerStats {
  int64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, preemptions = 0;
  int64_t generated_tokens = 0;                 ///< tokens drawn, except those after an end
  int64_t prefix_queries = 0, prefix_hits = 0;  ///< prompt tokens looked up, tokens found

  /// Steps by their number of tokens: entry i counts steps with at most kStepSizes[i] tokens and
  /// more than kStepSizes[i - 1]; the last entry counts steps with more than all of these.
  static constexpr std::array<int64_t, 13> kStepSizes = {1,   8,    16,   32,   64,   128,  256,
                                                         512, 1024, 2048, 4096, 8192, 16384};
  std::array<int64_t, kStepSizes.size() + 1> steps_of_size = {};

  void count_step(int64_t num_tokens) {
    ++steps;
    ++steps_of_size[static_cast<size_t>(std::ranges::lower_bound(kStepSizes, num_tokens) -
                                        kStepSizes.begin())];
  }
};

/// How often blocks of the KV cache changed hands since the engine was started.
struct BlockStats {
  int64_t blocks_taken = 0;   ///< a free block was taken for new contents
  int64_t blocks_shared = 0;  ///< a block with its contents got one more holder
  int64_t blocks_freed = 0;   ///< the last holder gave a block back
};

/// The state after the latest step, and counts since the engine was started.
struct EngineStats : SchedulerStats, BlockStats {
  int64_t num_running = 0, num_waiting = 0;     ///< sequences
  int64_t num_blocks = 0, num_free_blocks = 0;  ///< blocks of the KV cache
  double host_seconds = 0;  ///< in step(), except for waiting: scheduling, building, postprocessing
  double mask_seconds = 0;  ///< of host_seconds: for what the forms of answers allow
  double compile_seconds = 0;  ///< in which forms of answers were compiled, by all threads
  double device_seconds = 0;   ///< time in which a step was being computed
};

}  // namespace nanovllm
