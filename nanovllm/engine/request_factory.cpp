#include "nanovllm/engine/request_factory.h"

#include <atomic>
#include <utility>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/to_size.h"
#include "nanovllm/text/bad_words.h"

namespace nanovllm {

static void sort_unique(std::vector<int32_t>& ids) {
  std::ranges::sort(ids);
  ids.erase(std::ranges::unique(ids).begin(), ids.end());
}

std::vector<int32_t> end_tokens(const ModelSpec& model, const Tokenizer* tokenizer) {
  std::vector<int32_t> ids = model.eos_token_ids;
  const auto eos = tokenizer != nullptr ? tokenizer->eos_token_id() : std::nullopt;
  if (eos && std::ranges::find(ids, *eos) == ids.end()) ids.push_back(*eos);
  return ids;
}

RequestFactory::RequestFactory(const EngineSetup& setup, std::shared_ptr<const Tokenizer> tokenizer)
    : vocab_size_(setup.model.vocab_size),
      max_model_len_(setup.config.max_model_len),
      max_logprobs_(setup.config.max_logprobs),
      end_tokens_(end_tokens(setup.model, tokenizer.get())),
      tokenizer_(std::move(tokenizer)),
      forms_(tokenizer_, end_tokens_, vocab_size_) {}

void RequestFactory::check_prompt(std::span<const int32_t> ids) const {
  require(!ids.empty(), "the prompt is empty; it needs at least one token");
  if (static_cast<int64_t>(ids.size()) >= max_model_len_)
    throw PromptTooLong(fmt::format(
        "the prompt has {} tokens; with max_model_len {}, the maximum context length, it may have "
        "at most {}",
        ids.size(), max_model_len_, max_model_len_ - 1));
  check_ids("the prompt", ids);
}

void RequestFactory::check_ids(const char* where, std::span<const int32_t> ids) const {
  for (const int32_t id : ids)
    require(id >= 0 && id < vocab_size_,
            "{} contains token id {}; the vocabulary has {} ids, 0 to {}", where, id, vocab_size_,
            vocab_size_ - 1);
}

void RequestFactory::check_params(const SamplingParams& params) const {
  params.validate();
  for (const auto& [name, number] : {std::pair("logprobs", params.logprobs),
                                     std::pair("prompt_logprobs", params.prompt_logprobs)})
    require(number.value_or(0) <= max_logprobs_, "{} is {}; it must be at most max_logprobs, {}",
            name, number.value_or(0), max_logprobs_);
  require(tokenizer_ != nullptr || (params.stop.empty() && params.bad_words.empty()),
          "stop and bad_words need a tokenizer; the model has no tokenizer.json");
  for (const std::vector<std::string>* texts : {&params.stop, &params.bad_words})
    for (const std::string& text : *texts) require_utf8(text, "a string in stop or bad_words");
  require(params.detokenize || params.stop.empty(), "stop needs detokenize to be true");
  check_ids("stop_token_ids", params.stop_token_ids);
  for (const auto& [id, bias] : params.logit_bias) check_ids("logit_bias", {&id, 1});
  if (params.allowed_token_ids) check_ids("allowed_token_ids", *params.allowed_token_ids);
}

std::shared_ptr<const RequestParams> RequestFactory::prepare(const SamplingParams& given) const {
  {
    const std::lock_guard lock(mutex_);
    if (auto last = last_.lock(); last != nullptr && last->given == given) return last;
  }
  check_params(given);
  static std::atomic<uint64_t> num_made = 0;
  RequestParams made = {.id = ++num_made, .given = given, .stop = StopPatterns(given.stop)};
  if (given.constraint) made.grammar = forms_.get(*given.constraint, "structured_outputs");
  for (std::optional<int64_t>* number : {&made.given.logprobs, &made.given.prompt_logprobs})
    if (*number) *number = std::min(**number, vocab_size_);
  made.stop_ids = given.stop_token_ids;
  if (!given.ignore_eos)
    made.stop_ids.insert(made.stop_ids.end(), end_tokens_.begin(), end_tokens_.end());
  std::erase_if(made.stop_ids, [&](int32_t id) { return id < 0 || id >= vocab_size_; });
  sort_unique(made.stop_ids);
  if (!given.bad_words.empty()) made.bad_words = encode_bad_words(given.bad_words, *tokenizer_);
  if (given.allowed_token_ids) sort_unique(made.allowed_ids = *given.allowed_token_ids);
  const auto words = to_size(ceil_div(vocab_size_, 32));
  if (made.allowed_ids.size() > words) {
    made.allowed_mask.resize(words);
    for (const int32_t id : std::exchange(made.allowed_ids, {}))
      made.allowed_mask[to_size(id / 32)] |= static_cast<int32_t>(1U << (id % 32));
  }
  auto shared = std::make_shared<const RequestParams>(std::move(made));
  const std::lock_guard lock(mutex_);
  last_ = shared;
  return shared;
}

NewRequest RequestFactory::make(std::vector<int32_t> prompt,
                                std::shared_ptr<const RequestParams> params,
                                const std::string& cache_salt, bool may_think) const {
  check_prompt(prompt);
  CacheSalt salt;
  if (!cache_salt.empty()) salt = std::make_shared<const std::string>(cache_salt);
  NewRequest made;
  for (int64_t choice = 0; choice < params->given.n; ++choice) {
    auto seq = std::make_unique<Sequence>();
    seq->choice = static_cast<int32_t>(choice);
    seq->params = params;
    seq->max_tokens = params->given.max_tokens;
    seq->cache_salt = salt;
    if (params->grammar) seq->constraint = forms_.constraint(params->grammar, prompt, may_think);
    seq->token_ids = prompt;
    seq->num_prompt_tokens = static_cast<int64_t>(prompt.size());
    made.choices.push_back(std::move(seq));
  }
  made.request =
      std::make_unique<Request>(std::move(prompt), std::move(params), tokenizer_, vocab_size_);
  return made;
}

}  // namespace nanovllm
