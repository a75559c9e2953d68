#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/engine/request.h"
#include "nanovllm/engine/request_params.h"
#include "nanovllm/engine/sequence.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/grammar/forms.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

/// The tokens that end an answer: those of generation_config.json and config.json, and the
/// tokenizer's eos_token. Fine-tuned checkpoints often keep the files of the base model, whose end
/// token is not the one that ends a turn in their chat template. `tokenizer` may be null.
std::vector<int32_t> end_tokens(const ModelSpec& model, const Tokenizer* tokenizer);

/// A request that was checked and can be added to the engine.
struct NewRequest {
  std::unique_ptr<Request> request;
  std::vector<std::unique_ptr<Sequence>> choices;
};

/// Checks and prepares requests. Any thread may use it, also when the engine has ended.
class RequestFactory {
 public:
  /// `tokenizer` may be null.
  RequestFactory(const EngineSetup& setup, std::shared_ptr<const Tokenizer> tokenizer);

  /// Throws UserError for parameters out of range and ids outside the vocabulary. Many requests in
  /// a row often have equal parameters; while one of them lives, the others share its parameters.
  std::shared_ptr<const RequestParams> prepare(const SamplingParams& params) const;
  /// Throws UserError for ids outside the vocabulary, and for a prompt that is empty or can never
  /// fit. Prompts share cached blocks only if their `cache_salt` is equal. An answer has its
  /// form from after the thought that the prompt has begun, or the answer, if it `may_think`.
  NewRequest make(std::vector<int32_t> prompt_token_ids,
                  std::shared_ptr<const RequestParams> params, const std::string& cache_salt = "",
                  bool may_think = false) const;
  NewRequest make(std::vector<int32_t> prompt_token_ids, const SamplingParams& params,
                  const std::string& cache_salt = "") const {
    check_prompt(prompt_token_ids);
    return make(std::move(prompt_token_ids), prepare(params), cache_salt);
  }
  double compile_seconds() const { return forms_.compile_seconds(); }
  /// The most tokens of an answer to a prompt of `prompt_len` tokens.
  int64_t max_tokens(const SamplingParams& params, size_t prompt_len) const {
    return std::min(params.max_tokens, max_model_len_ - static_cast<int64_t>(prompt_len));
  }

 private:
  void check_ids(const char* where, std::span<const int32_t> ids) const;
  void check_prompt(std::span<const int32_t> ids) const;
  void check_params(const SamplingParams& params) const;

  const int64_t vocab_size_, max_model_len_, max_logprobs_;
  const std::vector<int32_t> end_tokens_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const grammar::Forms forms_;
  mutable std::mutex mutex_;
  mutable std::weak_ptr<const RequestParams> last_;  // guarded by the mutex
};

}  // namespace nanovllm
