#include <algorithm>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>
#include <variant>

#include "nanovllm/server/conversation/conversation.h"
#include "nanovllm/server/http/ids.h"
#include "nanovllm/server/openai/chunks.h"
#include "nanovllm/server/openai/limits.h"
#include "nanovllm/server/openai/request.h"
#include "nanovllm/server/openai/response.h"
#include "nanovllm/server/openai/writers.h"

namespace nanovllm::server {

namespace {

/// What the answers show of a prompt.
struct CompletionPrompt {
  int64_t num_tokens;
  std::vector<int32_t> ids;           // empty unless they are shown
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

/// Adds a request for the prompt, which it takes.
CompletionPrompt add_prompt(const Serving& serving, const CompletionRequest& request,
                            PromptInput input, const std::shared_ptr<const RequestParams>& params,
                            Generation& generation, const std::stop_token& stop) {
  auto* const text = std::get_if<std::string>(&input);
  std::vector<int32_t> ids =
      text == nullptr ? std::get<std::vector<int32_t>>(std::move(input))
                      : serving.encode(*text, request.add_special_tokens, request.cache_salt, stop);
  std::string echo;
  std::vector<int64_t> echo_offsets;
  if (request.echo)
    echo = text != nullptr ? std::move(*text) : serving.tokenizer().decode(ids, false);
  if (request.echo && request.params.logprobs)
    echo_offsets = offsets_of_prompt(
        serving.tokenizer(), ids, /*has_added_ids=*/text != nullptr && request.add_special_tokens);
  const auto& tokenizer = serving.vocabulary;
  const bool skip_special_tokens = request.params.skip_special_tokens;
  const bool continues = tokenizer != nullptr && has_text(ids, *tokenizer, skip_special_tokens);
  std::optional<Detokenizer> detokenizer;
  if (tokenizer != nullptr && request.params.detokenize)
    detokenizer.emplace(*tokenizer, skip_special_tokens);
  if (detokenizer && continues) detokenizer->continue_text();
  const TextOffset answer_offset(std::move(detokenizer), num_chars_of(echo));
  CompletionPrompt prompt = {static_cast<int64_t>(ids.size()),
                             {},
                             std::move(echo),
                             std::move(echo_offsets),
                             answer_offset};
  if (request.return_token_ids) prompt.ids = ids;
  const NewRequest& made = generation.add(serving, std::move(ids), params, request.cache_salt);
  if (continues) made.request->continue_text();
  return prompt;
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
        choices_.push_back(
            {.usage = {.prompt_tokens = prompt.num_tokens}, .offset = prompt.answer_offset});
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

Generation read_completion(const Serving& serving, const std::string& body,
                           const std::stop_token& stop) {
  CompletionRequest request =
      completion_request(parse_json(body, "the body", kMaxPromptListBytes), serving.defaults);
  ResponseHead head = {new_id("cmpl-"), std::time(nullptr), serving.name_of(request.model)};
  const auto params = prepare(serving, request);
  free_lists(request.params);
  std::vector<CompletionPrompt> prompts;
  Generation generation;
  for (PromptInput& input : std::exchange(request.prompts, {})) {
    if (stop.stop_requested()) throw Cancelled();
    prompts.push_back(add_prompt(serving, request, std::move(input), params, generation, stop));
  }
  generation.n = request.params.n;
  generation.stream = request.stream;
  generation.writer = std::make_unique<CompletionWriter>(
      std::move(head), std::move(request), std::move(prompts), token_text_of(serving.vocabulary));
  return generation;
}

}  // namespace nanovllm::server
