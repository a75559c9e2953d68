#include <ctime>
#include <utility>

#include "nanovllm/server/conversation/conversation.h"
#include "nanovllm/server/http/ids.h"
#include "nanovllm/server/openai/chunks.h"
#include "nanovllm/server/openai/limits.h"
#include "nanovllm/server/openai/request.h"
#include "nanovllm/server/openai/response.h"
#include "nanovllm/server/openai/writers.h"

namespace nanovllm::server {

namespace {

class ChatWriter : public AnswerWriter {
 public:
  ChatWriter(ResponseHead head, ChatRequest request, Conversation conversation, TokenText text)
      : request_(std::move(request)),
        conversation_(std::move(conversation)),
        head_(std::move(head)),
        text_(std::move(text)),
        chunks_(head_, {.token_text = text_,
                        .token_ids = request_.return_token_ids,
                        .null_usage = request_.include_usage}) {
    for (int64_t i = 0; i < request_.params.n; ++i)
      choices_.emplace_back(conversation_.parsing, conversation_.num_prompt_tokens);
  }

  void add(HttpReply& stream, size_t, const RequestUpdate& update) override {
    Choice& choice = choices_[static_cast<size_t>(update.choice)];
    const Usage* usage = request_.continuous_usage ? &choice.usage : nullptr;
    if (!std::exchange(choice.has_begun, true)) {
      chunk_.clear();
      chunks_.begin(chunk_, update.choice, conversation_.prompt, usage);
      stream.add_event(chunk_);
    }
    choice.usage.completion_tokens += static_cast<int64_t>(update.token_ids.size());
    AnswerParts parts = choice.parser.add(update.text);
    const bool ends = !update.finish_reason.empty();
    if (ends) parts.append(choice.parser.finish());
    choice.has_calls = choice.has_calls || !parts.calls.empty();
    std::vector<ToolCallDelta> calls;
    for (const ToolCall& c : parts.calls) calls.push_back({c.index, c.id, c.name, c.arguments});
    ChatChunks::Piece piece = {.content = parts.content,
                               .reasoning = parts.reasoning,
                               .tool_calls = calls,
                               .tokens = TokensView::of(update)};
    if (ends)
      piece.end = {finish_reason_of(update.finish_reason, choice.has_calls), &update.stop_reason};
    if (parts.empty() && !ends && !request_.shows_tokens()) return;
    chunk_.clear();
    chunks_.add(chunk_, update.choice, piece, usage);
    stream.add_event(chunk_);
  }

  void end(HttpReply& stream, const std::vector<RequestOutput>& outputs) override {
    end_stream(stream, chunks_, request_.include_usage, usage_of(outputs));
  }

  std::string whole(const std::vector<RequestOutput>& outputs) override {
    std::vector<AnswerParts> answers;
    for (const CompletionOutput& answer : outputs.front().outputs)
      answers.push_back(parse_answer(answer.text, conversation_.parsing));
    return chat_response(head_, outputs.front(), answers,
                         {.token_text = text_,
                          .token_ids = request_.return_token_ids,
                          .prompt_logprobs = request_.return_prompt_logprobs});
  }

 private:
  struct Choice {
    Choice(const AnswerParser::Options& parsing, int64_t prompt_tokens)
        : parser(parsing), usage{.prompt_tokens = prompt_tokens} {}
    AnswerParser parser;
    Usage usage;
    bool has_begun = false, has_calls = false;
  };

  const ChatRequest request_;
  const Conversation conversation_;
  const ResponseHead head_;
  const TokenText text_;
  const ChatChunks chunks_;
  std::vector<Choice> choices_;  // [n]
  std::string chunk_;
};

}  // namespace

Generation read_chat(const Serving& serving, const std::string& body, const std::stop_token& stop) {
  ChatRequest request =
      chat_request(parse_json(body, "the body", kMaxConversationBytes), serving.defaults);
  ResponseHead head = {new_id("chatcmpl-"), std::time(nullptr), serving.name_of(request.model)};
  Generation generation;
  Conversation conversation = add_conversation(serving, request, generation, stop);
  generation.writer =
      std::make_unique<ChatWriter>(std::move(head), std::move(request), std::move(conversation),
                                   token_text_of(serving.vocabulary));
  return generation;
}

}  // namespace nanovllm::server
