#include "nanovllm/server/anthropic/writer.h"

#include <optional>
#include <utility>

#include "nanovllm/server/anthropic/request.h"
#include "nanovllm/server/anthropic/response.h"
#include "nanovllm/server/conversation/conversation.h"
#include "nanovllm/server/http/ids.h"
#include "nanovllm/server/openai/limits.h"

namespace nanovllm::server {

namespace {

class MessageWriter : public AnswerWriter {
 public:
  MessageWriter(MessageHead head, Conversation conversation)
      : head_(std::move(head)),
        conversation_(std::move(conversation)),
        parser_(conversation_.parsing) {}

  void begin(HttpReply& stream) override {
    append_message_start(data_, head_, num_prompt_tokens());
    send(stream, "message_start");
    data_ = R"({"type":"ping"})";
    send(stream, "ping");
  }

  void add(HttpReply& stream, size_t, const RequestUpdate& update) override {
    AnswerParts parts = parser_.add(update.text);
    if (!update.finish_reason.empty()) parts.append(parser_.finish());
    if (!parts.reasoning.empty()) add_text(stream, BlockKind::kThinking, parts.reasoning);
    if (!parts.content.empty()) add_text(stream, BlockKind::kText, parts.content);
    for (const ToolCall& call : parts.calls) {
      begin_block(stream, BlockKind::kToolUse, &call);
      add_delta(stream, call.arguments);
    }
    has_calls_ = has_calls_ || !parts.calls.empty();
  }

  void end(HttpReply& stream, const std::vector<RequestOutput>& outputs) override {
    end_block(stream);
    append_message_delta(data_, end_of(outputs.front(), has_calls_), usage_of(outputs.front()));
    send(stream, "message_delta");
    data_ = R"({"type":"message_stop"})";
    send(stream, "message_stop");
  }

  std::string whole(const std::vector<RequestOutput>& outputs) override {
    const RequestOutput& output = outputs.front();
    const AnswerParts parts = parse_answer(output.outputs.front().text, conversation_.parsing);
    std::string to;
    append_message(to, head_, parts, end_of(output, !parts.calls.empty()), usage_of(output));
    return to;
  }

 private:
  int64_t num_prompt_tokens() const { return conversation_.num_prompt_tokens; }

  MessageUsage usage_of(const RequestOutput& output) const {
    return {.prompt_tokens = num_prompt_tokens(),
            .cached_tokens = output.num_cached_tokens,
            .output_tokens = static_cast<int64_t>(output.outputs.front().token_ids.size())};
  }

  static MessageEnd end_of(const RequestOutput& output, bool has_calls) {
    const CompletionOutput& answer = output.outputs.front();
    return {answer.finish_reason, answer.stop_reason, has_calls};
  }

  void send(HttpReply& stream, std::string_view event) {
    stream.add_event(data_, event);
    data_.clear();
  }

  void begin_block(HttpReply& stream, BlockKind kind, const ToolCall* call = nullptr) {
    end_block(stream);
    block_ = kind;
    append_block_start(data_, num_blocks_++, kind, call);
    send(stream, "content_block_start");
  }

  void add_delta(HttpReply& stream, std::string_view piece) {
    append_block_delta(data_, num_blocks_ - 1, *block_, piece);
    send(stream, "content_block_delta");
  }

  void add_text(HttpReply& stream, BlockKind kind, std::string_view piece) {
    if (block_ != kind) begin_block(stream, kind);
    add_delta(stream, piece);
  }

  void end_block(HttpReply& stream) {
    if (!block_) return;
    block_.reset();
    append_block_stop(data_, num_blocks_ - 1);
    send(stream, "content_block_stop");
  }

  const MessageHead head_;
  const Conversation conversation_;
  AnswerParser parser_;
  std::string data_;                // the data of the next event
  std::optional<BlockKind> block_;  // the kind of the block that is open
  int64_t num_blocks_ = 0;
  bool has_calls_ = false;
};

}  // namespace

Generation read_message(const Serving& serving, const std::string& body,
                        const std::stop_token& stop) {
  ChatRequest request = messages_request(parse_json(body, "the body", kMaxConversationBytes),
                                         serving.defaults, MessagesRoute::kMessages);
  MessageHead head = {new_id("msg_"), serving.name_of(request.model)};
  Generation generation;
  Conversation conversation = add_conversation(serving, request, generation, stop);
  generation.writer = std::make_unique<MessageWriter>(std::move(head), std::move(conversation));
  return generation;
}

std::string count_tokens_response(const Serving& serving, const std::string& body,
                                  const std::stop_token& stop) {
  ChatRequest request = messages_request(parse_json(body, "the body", kMaxConversationBytes),
                                         serving.defaults, MessagesRoute::kCountTokens);
  serving.name_of(request.model);
  const Conversation conversation = read_conversation(serving, request, stop);
  const Json counts = {{"input_tokens", conversation.prompt.size()}};
  return dump_json(counts);
}

}  // namespace nanovllm::server
