#pragma once

#include <concepts>
#include <cstdint>
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

/// A turn of a conversation.
struct Message {
  std::string role;  ///< system, user, assistant, tool
  std::string content;
};

/// The text side of a checkpoint: tokenizer and chat template. Thread-safe; a copy is cheap and
/// outlives the LLM.
class __attribute__((visibility("default"))) LLMTokenizer {
 public:
  /// Throws UserError where the checkpoint has no tokenizer.json. Special tokens in the text are
  /// parsed as such; the tokenizer's post-processor adds its own unless `add_special_tokens` is
  /// false.
  std::vector<int32_t> encode(const std::string& text, bool add_special_tokens = true) const;
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;
  /// The prompt for a conversation; encode it without special tokens, which it holds already.
  /// `enable_thinking` reaches the template where given. Throws UserError where the checkpoint has
  /// no template, or with the template's own error.
  std::string apply_chat_template(const std::vector<Message>& messages,
                                  bool add_generation_prompt = true,
                                  std::optional<bool> enable_thinking = std::nullopt) const;
  /// The same with all of the template's variables, a JSON object as text: {"messages": [...],
  /// "tools"?, "add_generation_prompt"?, ...}, messages and tools in OpenAI's form.
  std::string render_chat_template(const std::string& variables_json) const;

 private:
  friend class LLM;
  struct Parts;
  explicit LLMTokenizer(std::shared_ptr<const Parts> parts);
  std::shared_ptr<const Parts> parts_;
};

/// What a prompt can be.
template <class T>
concept TextOrTokens = std::same_as<T, std::string> || std::same_as<T, std::vector<int32_t>>;

/// A model ready to generate: `LLM llm("models/tiny-tales"); llm.generate({"Once upon a
/// time"})[0].text`. Several threads may use it: their requests run together. Every member throws
/// UserError for a caller's mistake and EngineDead when the engine broke, also in a process that
/// was forked from the one that made the LLM: none of its threads is there.
class __attribute__((visibility("default"))) LLM {
 public:
  /// Loads a checkpoint folder in Hugging Face layout.
  explicit LLM(const std::string& model, const EngineConfig& config = {});
  LLM(LLM&&) noexcept;
  ~LLM();

  /// Runs all prompts to their end and returns their outputs in order. `use_tqdm`: a progress bar
  /// on stderr; by default where that is a terminal. Nothing runs if a prompt or a parameter is
  /// refused. Requests that were added before go on meanwhile; the next step() has their updates.
  std::vector<RequestOutput> generate(const std::vector<std::string>& prompts,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt);
  /// The same for prompts that are token ids.
  std::vector<RequestOutput> generate(const std::vector<std::vector<int32_t>>& prompts,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt);
  /// The same with SamplingParams for each prompt. (A template, so that the braces in
  /// generate(prompts, {.max_tokens = 2}) can only be one SamplingParams.)
  template <TextOrTokens Prompt, std::same_as<SamplingParams> Params>
  std::vector<RequestOutput> generate(const std::vector<Prompt>& prompts,
                                      const std::vector<Params>& sampling_params,
                                      std::optional<bool> use_tqdm = std::nullopt) {
    return generate_all(prompts, sampling_params, use_tqdm);
  }
  /// The same for prompts written out in the call, generate({"a", "b"}) and generate({{1, 2},
  /// {3}}).
  std::vector<RequestOutput> generate(std::initializer_list<const char*> prompts,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt) {
    return generate(std::vector<std::string>(prompts.begin(), prompts.end()), sampling_params,
                    use_tqdm);
  }
  std::vector<RequestOutput> generate(std::initializer_list<std::initializer_list<int32_t>> prompts,
                                      const SamplingParams& sampling_params = {},
                                      std::optional<bool> use_tqdm = std::nullopt) {
    return generate(std::vector<std::vector<int32_t>>(prompts.begin(), prompts.end()),
                    sampling_params, use_tqdm);
  }

  /// For callers that drive the engine themselves: add requests, then step() until is_finished().
  uint64_t add_request(const std::string& prompt, const SamplingParams& sampling_params);
  uint64_t add_request(std::vector<int32_t> prompt_token_ids,
                       const SamplingParams& sampling_params);
  /// Ends a request; the next step() returns it with what it has. False if it is not running.
  bool abort(uint64_t request_id);
  /// Moves every request on and returns what grew or ended of those that were added; where other
  /// calls did so before, at once.
  std::vector<RequestUpdate> step();
  /// Whether step() returned the end of every request that was added.
  bool is_finished() const;

  EngineStats stats() const;
  const LLMTokenizer& tokenizer() const;
  int64_t max_model_len() const;
  int64_t vocab_size() const;
  /// Frees the model now; every later call throws EngineDead.
  void exit();
  /// What is behind it, for front ends that are built with the library (engine/async_engine.h).
  AsyncEngine& async_engine() const;

 private:
  const AsyncEngine& alive() const;
  /// `sampling_params`: one, or one for each prompt. The library holds it for both kinds.
  template <TextOrTokens Prompt>
  std::vector<RequestOutput> generate_all(const std::vector<Prompt>& prompts,
                                          std::span<const SamplingParams> sampling_params,
                                          std::optional<bool> use_tqdm);

  std::unique_ptr<AsyncEngine> engine_;
  LLMTokenizer tokenizer_;
  std::shared_ptr<Inbox> added_;  // of add_request()
};

}  // namespace nanovllm
