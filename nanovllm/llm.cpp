#include "nanovllm/llm.h"

#include <unordered_map>
#include <utility>

#include "nanovllm/base/arguments.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/progress.h"
#include "nanovllm/front/async_engine.h"
#include "nanovllm/hub/hub.h"
#include "nanovllm/hub/verify.h"
#include "nanovllm/params/generation_config.h"
#include "nanovllm/text/chat_template.h"

namespace nanovllm {

struct LLMTokenizer::Parts {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;

  std::string render(const Json& variables) const {
    require(chat_template.has_value(),
            "the model has no tokenizer.json, so its chat template is not used");
    return chat_template->prompt(variables);
  }
};

LLMTokenizer::LLMTokenizer(const std::string& model, std::shared_ptr<const Tokenizer> tokenizer) {
  std::optional<ChatTemplate> chat_template;
  if (tokenizer != nullptr)
    chat_template = ChatTemplate::load_for_later(model, hub::pull_hint(model));
  parts_ = std::make_shared<const Parts>(Parts{std::move(tokenizer), std::move(chat_template)});
}

namespace {

constexpr double kSecondsBetweenUpdates = 0.1;  // updates of the progress bar

const Tokenizer& need_tokenizer(const Tokenizer* tokenizer) {
  require(tokenizer != nullptr, "the model has no tokenizer.json: give prompts as token ids");
  return *tokenizer;
}

}  // namespace

std::vector<int32_t> LLMTokenizer::encode(const std::string& text, bool add_special_tokens) const {
  const Tokenizer& tokenizer = need_tokenizer(parts_->tokenizer.get());
  require_utf8(text, "the text");
  return tokenizer.encode(text, add_special_tokens);
}

std::string LLMTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  return need_tokenizer(parts_->tokenizer.get()).decode(ids, skip_special_tokens);
}

std::string LLMTokenizer::apply_chat_template(const std::vector<Message>& messages,
                                              bool add_generation_prompt,
                                              std::optional<bool> enable_thinking) const {
  Json variables = {{"messages", Json::array()},
                    {"add_generation_prompt", add_generation_prompt},
                    {"tools", nullptr},  // transformers passes these too
                    {"documents", nullptr}};
  for (const Message& m : messages)
    variables["messages"].push_back({{"role", m.role}, {"content", m.content}});
  if (enable_thinking) variables["enable_thinking"] = *enable_thinking;
  return parts_->render(variables);
}

std::string LLMTokenizer::render_chat_template(const std::string& variables_json) const {
  return parts_->render(parse_json(variables_json, "the chat template's variables"));
}

namespace {

/// Returns the result of load(). Errors name the fields of EngineConfig instead of the program's
/// options, because a caller of the library has typed none.
template <class Load>
auto loaded(const std::string& folder, const Load& load) {
  try {
    return load();
  } catch (const UserError& e) {
    throw UserError(with_field_names(e.what()) + hub::verify_hint(folder, e.what()));
  }
}

}  // namespace

LLM::LLM(const std::string& model, const EngineConfig& config)
    : folder_(loaded(model,
                     [&] {
                       return hub::find_model(model,
                                              {.local_files_only = config.local_files_only,
                                               .needs_weights = config.load_format != "dummy",
                                               .revision = config.revision,
                                               .download_dir = config.download_dir});
                     })),
      engine_(new AsyncEngine(loaded(folder_,
                                     [&] {
                                       return std::unique_ptr<LLMEngine>(
                                           new LLMEngine(LLMEngine::load(folder_, config)));
                                     }))),
      tokenizer_(folder_, engine_->tokenizer()),
      added_(std::make_shared<Inbox>(/*wants_pieces=*/true)) {
  try {
    default_params_ = GenerationConfig().defaults(folder_);
  } catch (const UserError& e) {  // matters only to callers that want these values
    default_params_error_ = e.what();
  }
}

void LLM::EndEngine::operator()(AsyncEngine* engine) const {
  if (engine->belongs_to_this_process()) delete engine;
}

AsyncEngine& LLM::async_engine() const {
  if (engine_ == nullptr) throw EngineDead("this LLM was moved from");
  return *engine_;
}

const AsyncEngine& LLM::alive() const {
  async_engine().require_alive();
  return *engine_;
}

template <TextOrTokens Prompt>
std::vector<RequestOutput> LLM::generate_all(const std::vector<Prompt>& prompts,
                                             std::span<const SamplingParams> params,
                                             std::optional<bool> use_tqdm,
                                             const OnUpdate& on_update) {
  AsyncEngine& engine = async_engine();
  engine.require_alive();
  require(params.size() == prompts.size(),
          "{} prompts and {} SamplingParams; give one, or one for each prompt", prompts.size(),
          params.size());
  // All prompts are checked before any is submitted, so that an error leaves no request running.
  std::vector<NewRequest> requests;
  for (size_t i = 0; i < prompts.size(); ++i) {
    try {
      if constexpr (std::same_as<Prompt, std::string>)
        requests.push_back(engine.requests().make(tokenizer_.encode(prompts[i]), params[i]));
      else requests.push_back(engine.requests().make(prompts[i], params[i]));
    } catch (const UserError& e) {
      if (prompts.size() == 1) throw;
      fail("prompt {} of {}: {}", i, prompts.size(), e.what());
    }
  }
  const auto inbox = std::make_shared<Inbox>(/*wants_pieces=*/on_update != nullptr);
  const auto cancel = [&](Inbox* i) { engine.cancel_all(*i); };
  const std::unique_ptr<Inbox, decltype(cancel)> cancel_at_exit(inbox.get(), cancel);
  std::unordered_map<uint64_t, size_t> index;
  for (size_t i = 0; i < requests.size(); ++i)
    index[engine.submit(inbox, std::move(requests[i]))] = i;
  const EngineStats before = engine.stats();
  ProgressBar bar("Generating", static_cast<int64_t>(prompts.size()),
                  use_tqdm.value_or(stderr_is_terminal()));
  std::vector<RequestOutput> outputs(prompts.size());
  for (size_t num_done = 0; num_done < prompts.size();) {
    for (RequestUpdate& update : engine.wait(*inbox, kSecondsBetweenUpdates)) {
      const size_t i = index.at(update.request_id);
      if (on_update && !on_update(i, update)) engine.cancel(update.request_id);
      if (!update.finished) continue;
      outputs[i] = *std::move(update.finished);
      ++num_done;
    }
    const EngineStats stats = engine.stats();
    bar.update(static_cast<int64_t>(num_done), stats.prefill_tokens - before.prefill_tokens,
               stats.decode_tokens - before.decode_tokens);
  }
  return outputs;
}

template std::vector<RequestOutput> LLM::generate_all(const std::vector<std::string>& prompts,
                                                      std::span<const SamplingParams> params,
                                                      std::optional<bool> use_tqdm,
                                                      const OnUpdate& on_update);
template std::vector<RequestOutput> LLM::generate_all(
    const std::vector<std::vector<int32_t>>& prompts, std::span<const SamplingParams> params,
    std::optional<bool> use_tqdm, const OnUpdate& on_update);

std::vector<RequestOutput> LLM::generate(const std::vector<std::string>& prompts,
                                         const SamplingParams& sampling_params,
                                         std::optional<bool> use_tqdm, const OnUpdate& on_update) {
  return generate_all(prompts, std::vector(prompts.size(), sampling_params), use_tqdm, on_update);
}

std::vector<RequestOutput> LLM::generate(const std::vector<std::vector<int32_t>>& prompts,
                                         const SamplingParams& sampling_params,
                                         std::optional<bool> use_tqdm, const OnUpdate& on_update) {
  return generate_all(prompts, std::vector(prompts.size(), sampling_params), use_tqdm, on_update);
}

RequestOutput LLM::chat(const std::vector<Message>& messages,
                        const std::optional<SamplingParams>& sampling_params,
                        const OnUpdate& on_update, std::optional<bool> enable_thinking) {
  alive();
  const std::string prompt =
      tokenizer_.apply_chat_template(messages, /*add_generation_prompt=*/true, enable_thinking);
  const std::vector<std::vector<int32_t>> ids = {
      tokenizer_.encode(prompt, /*add_special_tokens=*/false)};
  return generate(ids, sampling_params ? *sampling_params : default_sampling_params(),
                  /*use_tqdm=*/false, on_update)
      .front();
}

uint64_t LLM::add_request(const std::string& prompt, const SamplingParams& sampling_params) {
  alive();
  return add_request(tokenizer_.encode(prompt), sampling_params);
}

uint64_t LLM::add_request(std::vector<int32_t> prompt_token_ids,
                          const SamplingParams& sampling_params) {
  AsyncEngine& engine = async_engine();
  engine.require_alive();
  return engine.submit(added_,
                       engine.requests().make(std::move(prompt_token_ids), sampling_params));
}

bool LLM::abort(uint64_t request_id) { return async_engine().cancel(request_id); }
std::vector<RequestUpdate> LLM::step() { return async_engine().wait(*added_, /*seconds=*/0); }
bool LLM::is_finished() const { return async_engine().is_finished(*added_); }
const SamplingParams& LLM::default_sampling_params() const {
  alive();
  require(default_params_error_.empty(), "{}", default_params_error_);
  return default_params_;
}
EngineStats LLM::stats() const { return alive().stats(); }
int64_t LLM::max_model_len() const { return alive().setup().config.max_model_len; }
int64_t LLM::vocab_size() const { return alive().setup().model.vocab_size; }
const LLMTokenizer& LLM::tokenizer() const { return tokenizer_; }
void LLM::exit() {
  if (engine_ != nullptr) engine_->exit();
}

}  // namespace nanovllm
