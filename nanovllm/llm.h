#pragma once

#if __cplusplus < 202002L
#error "nanovllm/llm.h needs C++20: compile with -std=c++20 or CMAKE_CXX_STANDARD 20"
#else  // nothing more, so that this is the only error

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/error.h"
#include "nanovllm/base/output.h"

namespace nanovllm {

class AsyncEngine;
class Inbox;
class Tokenizer;

/// One message of a conversation.
struct Message {
  std::string role;  ///< system, user, assistant, tool
  std::string content;
};

/// The tokenizer and the chat template of a checkpoint. Thread-safe. Copies are cheap and may
/// outlive the LLM. Every member throws UserError for a mistake of the caller.
class __attribute__((visibility("default"))) LLMTokenizer {
 public:
  /// LLM calls this. `tokenizer` is the tokenizer of the checkpoint folder, or null if it has none.
  LLMTokenizer(const std::string& model, std::shared_ptr<const Tokenizer> tokenizer);
  // Moving an object copies it, so that no object is ever without its parts.
  LLMTokenizer(const LLMTokenizer&) = default;
  LLMTokenizer& operator=(const LLMTokenizer&) = default;
  /// The token ids of a text. Special tokens that are written in the text are recognised. Unless
  /// `add_special_tokens` is false, the tokenizer's post-processor adds others, such as a
  /// begin-of-text token. Throws UserError, like decode(), if there is no tokenizer.json.
  std::vector<int32_t> encode(const std::string& text, bool add_special_tokens = true) const;
  /// The text of token ids. Ids that no token has are left out, and bytes that are not UTF-8 become
  /// U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;
  /// The prompt for a conversation. Encode it with add_special_tokens = false, because the template
  /// has already written special tokens. `enable_thinking` is passed to the template if it is
  /// given. Throws UserError if the checkpoint has no template, or if the template fails.
  std::string apply_chat_template(const std::vector<Message>& messages,
                                  bool add_generation_prompt = true,
                                  std::optional<bool> enable_thinking = std::nullopt) const;
  /// The prompt for a conversation with any variables of the template, given as the text of a JSON
  /// object: {"messages": [...], "tools"?, "add_generation_prompt"?, ...}. Messages and tools have
  /// OpenAI's format.
  std::string render_chat_template(const std::string& variables_json) const;

 private:
  struct Parts;
  std::shared_ptr<const Parts> parts_;
};

/// The types that a prompt can have.
template <class T>
concept TextOrTokens = std::same_as<T, std::string> || std::same_as<T, std::vector<int32_t>>;

/// Called on the thread of generate() for each update of prompt number `prompt`. If it returns
/// false, the answers to that prompt end with the finish_reason "abort". If it throws, all requests
/// of the call end, and generate() throws that exception.
using OnUpdate = std::function<bool(size_t prompt, const RequestUpdate& update)>;

/// A loaded model that generates text: `LLM llm("models/tiny-tales"); llm.generate({"Once upon a
/// time"})[0].text`. Several threads may use it at the same time; their requests run in one batch.
/// Every member throws UserError for a mistake of the caller. Every member but exit(), tokenizer()
/// and async_engine() throws EngineDead if the engine has failed, and in a process that was forked
/// from the one that made the LLM (threads.fork).
class __attribute__((visibility("default"))) LLM {
 public:
  /// Loads a model: a checkpoint folder in Hugging Face layout, or the id of a model on the Hugging
  /// Face hub, ORG/NAME[@REVISION], which is found in the Hugging Face cache or downloaded into it
  /// (docs/models.md). Throws std::runtime_error if a download fails.
  explicit LLM(const std::string& model, const EngineConfig& config = {});
  /// An LLM that was moved from throws EngineDead; its tokenizer() can still be used.
  LLM(LLM&&) noexcept = default;
  LLM& operator=(LLM&&) noexcept = default;
  ~LLM() = default;

  /// Runs all prompts until they are finished, and returns their outputs in the order of the
  /// prompts. `use_tqdm` shows a progress bar on stderr; by default it is shown if stderr is a
  /// terminal. `on_update` gets every piece of text as soon as it is generated. If any prompt or
  /// parameter is invalid, nothing runs, and the error says which one it is, counted from 0.
  /// Requests of add_request() continue to run during the call; the next step() returns their
  /// updates.
  std::vector<RequestOutput> generate(const std::vector<std::string>& prompts,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt,
                                      const OnUpdate& on_update = {});
  /// Runs prompts that are given as token ids.
  std::vector<RequestOutput> generate(const std::vector<std::vector<int32_t>>& prompts,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt,
                                      const OnUpdate& on_update = {});
  /// Runs a single prompt.
  std::vector<RequestOutput> generate(const std::string& prompt,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt,
                                      const OnUpdate& on_update = {}) {
    return generate(std::vector<std::string>{prompt}, sampling_params, use_tqdm, on_update);
  }
  /// Runs prompts with one SamplingParams for each of them. (It is a template so that the braces in
  /// generate(prompts, {.max_tokens = 2}) can only mean a single SamplingParams.)
  template <TextOrTokens Prompt, std::same_as<SamplingParams> Params>
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const std::vector<Params>& sampling_params,
                                      std::optional<bool> use_tqdm = std::nullopt,
                                      const OnUpdate& on_update = {}) {
    return generate_all(prompts, sampling_params, use_tqdm, on_update);
  }
  /// Runs prompts that are written in the call: generate({"a", "b"}) and generate({{1, 2}, {3}}).
  std::vector<RequestOutput> generate(std::initializer_list<const char*> prompts,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt,
                                      const OnUpdate& on_update = {}) {
    return generate(std::vector<std::string>(prompts.begin(), prompts.end()), sampling_params,
                    use_tqdm, on_update);
  }
  template <std::same_as<SamplingParams> Params>
  std::vector<RequestOutput> generate(std::initializer_list<const char*> prompts,
                                      const std::vector<Params>& sampling_params,
                                      std::optional<bool> use_tqdm = std::nullopt,
                                      const OnUpdate& on_update = {}) {
    return generate(std::vector<std::string>(prompts.begin(), prompts.end()), sampling_params,
                    use_tqdm, on_update);
  }
  std::vector<RequestOutput> generate(std::initializer_list<std::initializer_list<int32_t>> prompts,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt,
                                      const OnUpdate& on_update = {}) {
    return generate(std::vector<std::vector<int32_t>>(prompts.begin(), prompts.end()),
                    sampling_params, use_tqdm, on_update);
  }

  /// The answer to a conversation, which the checkpoint's chat template turns into a prompt.
  /// Without `sampling_params` it uses default_sampling_params(). `on_update` gets the answer in
  /// pieces.
  RequestOutput chat(const std::vector<Message>& messages,
                     const std::optional<SamplingParams>& sampling_params = std::nullopt,
                     const OnUpdate& on_update = {},
                     std::optional<bool> enable_thinking = std::nullopt);
  RequestOutput chat(const std::vector<Message>& messages, const SamplingParams& sampling_params,
                     const OnUpdate& on_update = {},
                     std::optional<bool> enable_thinking = std::nullopt) {
    return chat(messages, std::optional(sampling_params), on_update, enable_thinking);
  }
  /// The sampling values of the checkpoint's generation_config.json. If it does not limit the
  /// length of an answer, only the context does. Throws UserError if the file is not valid.
  const SamplingParams& default_sampling_params() const;

  /// For callers that run the engine step by step: add requests, then call step() until
  /// is_finished(). Returns the id of the request.
  uint64_t add_request(const std::string& prompt, const SamplingParams& sampling_params);
  uint64_t add_request(std::vector<int32_t> prompt_token_ids,
                       const SamplingParams& sampling_params);
  uint64_t add_request(std::initializer_list<int32_t> prompt_token_ids,
                       const SamplingParams& sampling_params) {
    return add_request(std::vector<int32_t>(prompt_token_ids), sampling_params);
  }
  /// Ends a request; the next step() returns it with the tokens it has. Returns false if no such
  /// request is running.
  bool abort(uint64_t request_id);
  /// Runs one step of the engine and returns the updates of the requests that were added. If there
  /// are updates from steps that other calls ran, it returns those at once and runs no step.
  std::vector<RequestUpdate> step();
  /// Whether step() has returned the finished output of every request that was added.
  bool is_finished() const;

  /// Counts and times since the start, as of the last step. For each single step and request, see
  /// the trace file: `LLM llm(model, {.trace = "trace.json"})` (docs/learn.md).
  EngineStats stats() const;
  const LLMTokenizer& tokenizer() const;
  int64_t max_model_len() const;
  int64_t vocab_size() const;
  /// Frees the model. Later calls throw EngineDead (cleanup.death), except for exit(), tokenizer()
  /// and async_engine().
  void exit();
  /// The engine that this uses, for front ends that are built together with the library
  /// (front/async_engine.h).
  AsyncEngine& async_engine() const;

 private:
  /// Destroys the engine, but not in a forked process: its threads run only in the parent
  /// (threads.fork).
  struct EndEngine {
    void operator()(AsyncEngine* engine) const;
  };

  const AsyncEngine& alive() const;
  /// `sampling_params`: one for each prompt. llm.cpp instantiates it for both kinds of prompts.
  template <TextOrTokens Prompt>
  std::vector<RequestOutput> generate_all(const std::vector<Prompt>& prompts,
                                          std::span<const SamplingParams> sampling_params,
                                          std::optional<bool> use_tqdm, const OnUpdate& on_update);

  std::string folder_;  // the checkpoint's folder
  std::unique_ptr<AsyncEngine, EndEngine> engine_;
  LLMTokenizer tokenizer_;
  SamplingParams default_params_;
  std::string default_params_error_;  // the reason why the checkpoint has no default_params_
  std::shared_ptr<Inbox> added_;      // for the requests of add_request()
};

}  // namespace nanovllm

#endif
