#include <algorithm>
#include <ctime>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "nanovllm/server/http/ids.h"
#include "nanovllm/server/openai/chunks.h"
#include "nanovllm/server/openai/request.h"
#include "nanovllm/server/openai/response.h"
#include "nanovllm/server/openai/writers.h"

namespace nanovllm::server {

namespace {

/// A prompt as the model reads it, and what its answers show of it.
struct CompletionPrompt {
  std::vector<int32_t> ids;
  bool has_text;                      // which the answers continue
  std::string echo;                   // its text; empty without `echo`
  std::vector<int64_t> echo_offsets;  // of the ids in it; empty unless they are shown
  TextOffset answer_offset;           // where the answers begin
};

bool has_text(std::span<const int32_t> ids, const Tokenizer& tokenizer, bool skip_special_tokens) {
  return std::ranges::any_of(ids, [&](int32_t id) {
    return tokenizer.token_texts().contains(id) &&
           !(skip_special_tokens && tokenizer.is_special(id));
  });
}

CompletionPrompt read_prompt(const Serving& serving, const CompletionRequest& request,
                             const PromptInput& input) {
  const auto* const text = std::get_if<std::string>(&input);
  const auto* const given = std::get_if<std::vector<int32_t>>(&input);
  std::vector<int32_t> ids =
      given != nullptr ? *given
                       : serving.encode(*text, request.add_special_tokens, request.cache_salt);
  std::string echo;
  std::vector<int64_t> echo_offsets;
  if (request.echo) echo = text != nullptr ? *text : serving.tokenizer().decode(ids, false);
  if (request.echo && request.params.logprobs)
    echo_offsets = offsets_of_prompt(
        serving.tokenizer(), ids, /*has_added_ids=*/text != nullptr && request.add_special_tokens);
  const auto tokenizer = serving.client.engine().tokenizer();
  const bool skip_special_tokens = request.params.skip_special_tokens;
  const bool continues = tokenizer != nullptr && has_text(ids, *tokenizer, skip_special_tokens);
  std::optional<Detokenizer> detokenizer;
  if (tokenizer != nullptr && request.params.detokenize)
    detokenizer.emplace(*tokenizer, skip_special_tokens);
  if (detokenizer && continues) detokenizer->continue_text();
  const TextOffset answer_offset(std::move(detokenizer), num_chars_of(echo));
  return {std::move(ids), continues, std::move(echo), std::move(echo_offsets), answer_offset};
}

class CompletionWriter : public AnswerWriter {
 public:
  CompletionWriter(ResponseHead head, CompletionRequest request,
                   std::vector<CompletionPrompt> prompts, TokenText text)
      : request_(std::move(request)),
        prompts_(std::move(prompts)),
        head_(std::move(head)),
        text_(std::move(text)),
        chunks_(head_, {.token_text = text_, .token_ids = request_.return_token_ids}) {
    for (const CompletionPrompt& prompt : prompts_)
      for (int64_t i = 0; i < request_.params.n; ++i)
        choices_.push_back({.usage = {.prompt_tokens = static_cast<int64_t>(prompt.ids.size())},
                            .offset = prompt.answer_offset});
  }

  void add(HttpReply& stream, size_t prompt, const RequestUpdate& update) override {
    const int64_t number = static_cast<int64_t>(prompt) * request_.params.n + update.choice;
    Choice& choice = choices_[static_cast<size_t>(number)];
    if (!std::exchange(choice.has_begun, true) && (request_.echo || request_.return_token_ids)) {
      CompletionChunks::Piece first;
      if (request_.echo) first.text = prompts_[prompt].echo;
      if (request_.return_token_ids) first.prompt_token_ids = prompts_[prompt].ids;
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
    for (size_t i = 0; i < outputs.size(); ++i)
      answers.push_back({.output = &outputs[i],
                         .echo = prompts_[i].echo,
                         .echo_offsets = prompts_[i].echo_offsets,
                         .offset = prompts_[i].answer_offset,
                         .prompt_only = request_.prompt_only});
    return completion_response(head_, answers,
                               {.token_text = text_,
                                .token_ids = request_.return_token_ids,
                                .prompt_logprobs = request_.return_prompt_logprobs});
  }

 private:
  struct Choice {
    Usage usage;
    TextOffset offset;
    bool has_begun = false;
  };

  void add_chunk(HttpReply& stream, int64_t number, const CompletionChunks::Piece& piece) {
    Choice& choice = choices_[static_cast<size_t>(number)];
    const Usage* usage = request_.continuous_usage ? &choice.usage : nullptr;
    chunk_.clear();
    chunks_.add(chunk_, number, piece, choice.offset, usage);
    stream.add_event(chunk_);
  }

  const CompletionRequest request_;
  const std::vector<CompletionPrompt> prompts_;
  const ResponseHead head_;
  const TokenText text_;
  const CompletionChunks chunks_;
  std::vector<Choice> choices_;  // [num_prompts * n]
  std::string chunk_;
};

}  // namespace

Generation read_completion(const Serving& serving, const std::string& body) {
  CompletionRequest request = completion_request(parse_json(body, "the body"), serving.defaults);
  ResponseHead head = {new_id("cmpl-"), std::time(nullptr), serving.name_of(request.model)};
  AsyncEngine& engine = serving.client.engine();
  std::vector<CompletionPrompt> prompts;
  Generation generation;
  for (const PromptInput& input : request.prompts) {
    const CompletionPrompt& prompt = prompts.emplace_back(read_prompt(serving, request, input));
    NewRequest made = engine.prepare(prompt.ids, request.params, request.cache_salt);
    if (prompt.has_text) made.request->continue_text();
    generation.requests.push_back(std::move(made));
  }
  generation.n = request.params.n;
  generation.stream = request.stream;
  generation.writer = std::make_unique<CompletionWriter>(
      std::move(head), std::move(request), std::move(prompts), token_text_of(engine.tokenizer()));
  return generation;
}

}  // namespace nanovllm::server
