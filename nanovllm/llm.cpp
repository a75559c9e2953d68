#include "nanovllm/llm.h"

#include <unistd.h>

#include <tuple>
#include <unordered_map>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/progress.h"
#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/text/chat_template.h"

namespace nanovllm {

struct LLMTokenizer::Parts {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::optional<ChatTemplate> chat_template;

  std::string render(const Json& variables) const {
    require(chat_template.has_value(), "the model has no chat template");
    return chat_template->prompt(variables);
  }
};

LLMTokenizer::LLMTokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

namespace {

const Tokenizer& need_tokenizer(const Tokenizer* tokenizer) {
  require(tokenizer != nullptr, "the model has no tokenizer.json: give prompts as token ids");
  return *tokenizer;
}

}  // namespace

std::vector<int32_t> LLMTokenizer::encode(const std::string& text, bool add_special_tokens) const {
  return need_tokenizer(parts_->tokenizer.get()).encode(text, add_special_tokens);
}

std::string LLMTokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  return need_tokenizer(parts_->tokenizer.get()).decode(ids, skip_special_tokens);
}

std::string LLMTokenizer::apply_chat_template(const std::vector<Message>& messages,
                                              bool add_generation_prompt,
                                              std::optional<bool> enable_thinking) const {
  Json variables = {{"messages", Json::array()},
                    {"add_generation_prompt", add_generation_prompt},
                    {"tools", nullptr},  // as transformers passes them
                    {"documents", nullptr}};
  for (const Message& m : messages)
    variables["messages"].push_back({{"role", m.role}, {"content", m.content}});
  if (enable_thinking) variables["enable_thinking"] = *enable_thinking;
  return parts_->render(variables);
}

std::string LLMTokenizer::render_chat_template(const std::string& variables_json) const {
  return parts_->render(parse_json(variables_json, "the chat template's variables"));
}

LLM::LLM(const std::string& model, const EngineConfig& config)
    : process_(getpid()),
      engine_(std::make_unique<LLMEngine>(model, config)),
      tokenizer_(std::make_shared<const LLMTokenizer::Parts>(LLMTokenizer::Parts{
          engine_->tokenizer(),
          engine_->tokenizer() == nullptr ? std::nullopt : ChatTemplate::load(model)})) {}

LLM::LLM(LLM&&) noexcept = default;
LLM::~LLM() { drop_engine(); }

void LLM::drop_engine() noexcept {
  if (getpid() != process_) std::ignore = engine_.release();
  engine_.reset();
}

LLMEngine& LLM::engine() const {
  if (getpid() != process_)
    throw EngineDead(fmt::format(
        "process {} was forked from {}, which made this LLM, and cannot use it; make one after "
        "the fork",
        getpid(), process_));
  if (engine_ == nullptr) throw EngineDead("the engine was ended by exit()");
  return *engine_;
}

template <TextOrTokens Prompt>
std::vector<RequestOutput> LLM::generate_all(const std::vector<Prompt>& prompts,
                                             std::span<const SamplingParams> params,
                                             std::optional<bool> use_tqdm) {
  LLMEngine& e = engine();
  require(params.size() == 1 || params.size() == prompts.size(),
          "{} prompts and {} SamplingParams; give one, or one for each prompt", prompts.size(),
          params.size());
  // All are looked at before one is added: a refusal leaves nothing behind.
  std::vector<std::vector<int32_t>> ids;
  ids.reserve(prompts.size());
  const auto params_of = [&](size_t i) -> const SamplingParams& {
    return params[params.size() == 1 ? 0 : i];
  };
  for (size_t i = 0; i < prompts.size(); ++i) {
    if constexpr (std::same_as<Prompt, std::string>) ids.push_back(tokenizer_.encode(prompts[i]));
    else ids.push_back(prompts[i]);
    e.check_request(ids[i], params_of(i));
  }
  std::unordered_map<uint64_t, size_t> index;
  std::vector<RequestOutput> outputs(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i)
    index[e.add_request(std::move(ids[i]), params_of(i))] = i;
  const EngineStats before = e.stats();
  ProgressBar bar("Generating", static_cast<int64_t>(prompts.size()),
                  use_tqdm.value_or(stderr_is_terminal()));
  for (size_t num_done = 0; num_done < prompts.size();) {
    for (const RequestUpdate& update : e.step()) {
      const auto at = index.find(update.request_id);
      if (at == index.end()) others_.push_back(update);
      if (at == index.end() || !update.finished) continue;
      outputs[at->second] = *update.finished;
      ++num_done;
    }
    const EngineStats stats = e.stats();
    bar.update(static_cast<int64_t>(num_done), stats.prefill_tokens - before.prefill_tokens,
               stats.decode_tokens - before.decode_tokens);
  }
  return outputs;
}

template std::vector<RequestOutput> LLM::generate_all(const std::vector<std::string>& prompts,
                                                      std::span<const SamplingParams> params,
                                                      std::optional<bool> use_tqdm);
template std::vector<RequestOutput> LLM::generate_all(
    const std::vector<std::vector<int32_t>>& prompts, std::span<const SamplingParams> params,
    std::optional<bool> use_tqdm);

std::vector<RequestOutput> LLM::generate(const std::vector<std::string>& prompts,
                                         const SamplingParams& sampling_params,
                                         std::optional<bool> use_tqdm) {
  return generate_all(prompts, {&sampling_params, 1}, use_tqdm);
}

std::vector<RequestOutput> LLM::generate(const std::vector<std::vector<int32_t>>& prompts,
                                         const SamplingParams& sampling_params,
                                         std::optional<bool> use_tqdm) {
  return generate_all(prompts, {&sampling_params, 1}, use_tqdm);
}

uint64_t LLM::add_request(const std::string& prompt, const SamplingParams& sampling_params) {
  return engine().add_request(prompt, sampling_params);
}

uint64_t LLM::add_request(std::vector<int32_t> prompt_token_ids,
                          const SamplingParams& sampling_params) {
  return engine().add_request(std::move(prompt_token_ids), sampling_params);
}

bool LLM::abort(uint64_t request_id) { return engine().abort(request_id); }

std::vector<RequestUpdate> LLM::step() {
  const std::span<const RequestUpdate> updates = engine().step();
  std::vector<RequestUpdate> all = std::exchange(others_, {});
  all.insert(all.end(), updates.begin(), updates.end());
  return all;
}

bool LLM::is_finished() const { return engine().is_finished() && others_.empty(); }
const LLMTokenizer& LLM::tokenizer() const { return tokenizer_; }
int64_t LLM::max_model_len() const { return engine().limits().scheduler.max_model_len; }
int64_t LLM::vocab_size() const { return engine().limits().vocab_size; }
EngineStats LLM::stats() const { return engine().stats(); }
void LLM::exit() { drop_engine(); }

}  // namespace nanovllm
