#include <ctime>
#include <utility>
#include <variant>

#include "nanovllm/server/http/ids.h"
#include "nanovllm/server/openai/chunks.h"
#include "nanovllm/server/openai/request.h"
#include "nanovllm/server/openai/response.h"
#include "nanovllm/server/openai/writers.h"

namespace nanovllm::server {

namespace {

/// The prompts of a request, as texts if these are part of the answers, and as the model reads
/// them.
struct Prompts {
  std::vector<std::string> echoes;        // [num_prompts] with `echo`, else [0]
  std::vector<std::vector<int32_t>> ids;  // [num_prompts]
};

class CompletionWriter : public AnswerWriter {
 public:
  CompletionWriter(ResponseHead head, CompletionRequest request, Prompts prompts, TokenText text,
                   TokenText answer_text)
      : request_(std::move(request)),
        prompts_(std::move(prompts)),
        head_(std::move(head)),
        text_(std::move(text)),
        answer_text_(std::move(answer_text)),
        chunks_(head_, {.token_text = text_,
                        .answer_text = answer_text_,
                        .token_ids = request_.return_token_ids}) {
    for (const auto& ids : prompts_.ids)
      for (int64_t i = 0; i < request_.params.n; ++i)
        choices_.push_back({.usage = {.prompt_tokens = static_cast<int64_t>(ids.size())}});
  }

  void add(HttpReply& stream, size_t prompt, const RequestUpdate& update) override {
    const int64_t number = static_cast<int64_t>(prompt) * request_.params.n + update.choice;
    Choice& choice = choices_[static_cast<size_t>(number)];
    if (!std::exchange(choice.has_begun, true) && (request_.echo || request_.return_token_ids)) {
      CompletionChunks::Piece first;
      if (request_.echo) first.text = prompts_.echoes[prompt];
      if (request_.return_token_ids) first.prompt_token_ids = prompts_.ids[prompt];
      add_chunk(stream, number, first);
    }
    const bool ends = !update.finish_reason.empty();
    CompletionChunks::Piece piece;
    if (!request_.prompt_only) {
      choice.usage.completion_tokens += static_cast<int64_t>(update.token_ids.size());
      piece.text = update.text;
      piece.tokens = TokensView::of(update);
    }
    if (ends) piece.end = {finish_reason_of(update.finish_reason, false), &update.stop_reason};
    // One event a token, as in vLLM, even if its character is not complete.
    const bool has_token = !request_.prompt_only && !update.token_ids.empty();
    if (has_token || ends) add_chunk(stream, number, piece);
  }

  void end(HttpReply& stream, const std::vector<RequestOutput>& outputs) override {
    Usage usage = usage_of(outputs);
    if (request_.prompt_only) usage.completion_tokens = 0;
    end_stream(stream, chunks_, request_.include_usage, usage);
  }

  std::string whole(const std::vector<RequestOutput>& outputs) override {
    std::vector<PromptAnswers> answers;
    for (size_t i = 0; i < outputs.size(); ++i) {
      answers.push_back({.output = &outputs[i],
                         .echo_tokens = request_.echo && request_.params.logprobs.has_value(),
                         .prompt_only = request_.prompt_only});
      if (request_.echo) answers.back().echo = prompts_.echoes[i];
    }
    return completion_response(head_, answers,
                               {.token_text = text_,
                                .answer_text = answer_text_,
                                .token_ids = request_.return_token_ids,
                                .prompt_logprobs = request_.return_prompt_logprobs});
  }

 private:
  struct Choice {
    Usage usage;
    bool has_begun = false;
  };

  void add_chunk(HttpReply& stream, int64_t number, const CompletionChunks::Piece& piece) {
    const Usage& usage = choices_[static_cast<size_t>(number)].usage;
    chunk_.clear();
    chunks_.add(chunk_, number, piece, request_.continuous_usage ? &usage : nullptr);
    stream.add_event(chunk_);
  }

  const CompletionRequest request_;
  const Prompts prompts_;
  const ResponseHead head_;
  const TokenText text_, answer_text_;
  CompletionChunks chunks_;
  std::vector<Choice> choices_;  // [num_prompts * n]
  std::string chunk_;
};

}  // namespace

Generation read_completion(const Serving& serving, const std::string& body) {
  CompletionRequest request = completion_request(parse_json(body, "the body"), serving.defaults);
  ResponseHead head = {new_id("cmpl-"), std::time(nullptr), serving.name_of(request.model)};
  Prompts prompts;
  Generation generation;
  for (const PromptInput& prompt : request.prompts) {
    const auto* const text = std::get_if<std::string>(&prompt);
    const auto* const ids = std::get_if<std::vector<int32_t>>(&prompt);
    prompts.ids.push_back(
        ids != nullptr ? *ids
                       : serving.encode(*text, request.add_special_tokens, request.cache_salt));
    if (request.echo)
      prompts.echoes.push_back(text != nullptr ? *text : serving.tokenizer().decode(*ids, false));
    generation.requests.push_back(
        serving.client.engine().prepare(prompts.ids.back(), request.params, request.cache_salt));
  }
  generation.n = request.params.n;
  generation.stream = request.stream;
  const auto tokenizer = serving.client.engine().tokenizer();
  const bool skip_special_tokens = request.params.skip_special_tokens;
  generation.writer = std::make_unique<CompletionWriter>(
      std::move(head), std::move(request), std::move(prompts), token_text_of(tokenizer),
      answer_text_of(tokenizer, skip_special_tokens));
  return generation;
}

}  // namespace nanovllm::server
