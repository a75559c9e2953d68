#include "nanovllm/server/responses/writer.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "nanovllm/server/conversation/conversation.h"
#include "nanovllm/server/http/ids.h"
#include "nanovllm/server/http/json_text.h"
#include "nanovllm/server/openai/limits.h"
#include "nanovllm/server/openai/logprobs.h"
#include "nanovllm/server/responses/items.h"
#include "nanovllm/server/responses/request.h"

namespace nanovllm::server {

namespace {

/// The object {"id", "object": "response", ...}, whose items are added when they are complete.
class ResponseObject {
 public:
  /// `echo` is ResponsesRequest::echo.
  ResponseObject(std::string id, std::string model, std::string echo)
      : id_(std::move(id)), model_(std::move(model)), echo_(std::move(echo)) {}

  const std::string& id() const { return id_; }
  std::string next_id(std::string_view kind) const {
    return ResponseStore::item_id(kind, id_, items_.size());
  }
  void add(Json item) { items_.push_back(std::move(item)); }
  const Json& items() const { return items_; }

  // The whole objects, as JSON texts.
  std::string in_progress() const { return text("in_progress", Json::object()); }
  /// The whole object at the end. `usage` is {"input_tokens", ...}.
  std::string finished(bool is_complete, Json usage) const {
    Json more = {{"usage", std::move(usage)}};
    if (is_complete) more["completed_at"] = std::time(nullptr);
    else more["incomplete_details"] = {{"reason", "max_output_tokens"}};
    return text(is_complete ? "completed" : "incomplete", more);
  }

 private:
  std::string text(const char* status, const Json& more) const {
    Json response = {{"id", id_},        {"object", "response"}, {"created_at", created_},
                     {"status", status}, {"error", nullptr},     {"incomplete_details", nullptr},
                     {"model", model_},  {"output", items_}};
    response.update(more);
    std::string text = dump_json(response);
    text.back() = ',';
    return text.append(echo_, 1);  // behind its bracket; it has members
  }

  const std::string id_, model_;
  const int64_t created_ = std::time(nullptr);
  const std::string echo_;
  Json items_ = Json::array();
};

class ResponseWriter : public AnswerWriter {
 public:
  ResponseWriter(ResponsesRequest request, ResponseObject response, Conversation conversation,
                 TokenText token_text, ResponseStore& store)
      : request_(std::move(request)),
        conversation_(std::move(conversation)),
        token_text_(std::move(token_text)),
        store_(store),
        response_(std::move(response)),
        parser_(conversation_.parsing) {}

  void begin(HttpReply& stream) override {
    send_response(stream, "response.created", response_.in_progress());
    send_response(stream, "response.in_progress", response_.in_progress());
  }

  void add(HttpReply& stream, size_t, const RequestUpdate& update) override {
    AnswerParts parts = parser_.add(update.text);
    if (!update.finish_reason.empty()) parts.append(parser_.finish());
    if (!parts.reasoning.empty()) {
      has_thoughts_ = true;
      open(stream, Kind::kThoughts);
      add_delta(stream, parts.reasoning, {});
    }
    if (!parts.content.empty()) {
      open(stream, Kind::kText);
      add_delta(stream, parts.content, TokensView::of(update));
    }
    for (const ToolCall& call : parts.calls) add_call(stream, call);
  }

  void end(HttpReply& stream, const std::vector<RequestOutput>& outputs) override {
    const bool is_complete = is_complete_answer(outputs.front());
    close(stream, is_complete);
    const std::string response = response_.finished(is_complete, usage_of(outputs.front()));
    keep(response);
    send_response(stream, is_complete ? "response.completed" : "response.incomplete", response);
  }

  std::string whole(const std::vector<RequestOutput>& outputs) override {
    const RequestOutput& output = outputs.front();
    const CompletionOutput& answer = output.outputs.front();
    const AnswerParts parts = parse_answer(answer.text, conversation_.parsing);
    const bool is_complete = is_complete_answer(output);
    const bool ends_in_text = parts.calls.empty() && !parts.content.empty();
    const ItemStatus last = is_complete ? "completed" : "incomplete";
    has_thoughts_ = !parts.reasoning.empty();
    if (has_thoughts_) {
      const bool is_last = parts.content.empty() && parts.calls.empty();
      response_.add(
          reasoning_item(response_.next_id("rs"), is_last ? last : "completed", parts.reasoning));
    }
    if (!parts.content.empty()) {
      // Only the tokens of a message show their log-probabilities.
      Json logprobs = Json::array();
      if (ends_in_text && parts.reasoning.empty())
        logprobs = logprobs_of({answer.token_ids, answer.logprobs});
      response_.add(message_item(response_.next_id("msg"), ends_in_text ? last : "completed",
                                 parts.content, std::move(logprobs)));
    }
    for (const ToolCall& call : parts.calls)
      response_.add(call_item(response_.next_id("fc"), "completed", call));
    std::string response = response_.finished(is_complete, usage_of(output));
    keep(response);
    return response;
  }

 private:
  enum class Kind { kThoughts, kText };

  static bool is_complete_answer(const RequestOutput& output) {
    return output.outputs.front().finish_reason != "length";
  }

  /// How many tokens the thoughts have, including the tag that ends them.
  int64_t num_reasoning_tokens(const CompletionOutput& answer) const {
    if (!has_thoughts_) return 0;
    constexpr std::string_view kEnd = "</think>";
    const size_t at = answer.text.find(kEnd);
    if (at == std::string::npos) return std::ssize(answer.token_ids);
    size_t bytes = 0;
    int64_t num_tokens = 0;
    while (bytes < at + kEnd.size() && num_tokens < std::ssize(answer.token_ids))
      bytes += token_text_(answer.token_ids[static_cast<size_t>(num_tokens++)]).size();
    return num_tokens;
  }

  Json usage_of(const RequestOutput& output) const {
    const CompletionOutput& answer = output.outputs.front();
    const int64_t input = conversation_.num_prompt_tokens;
    const int64_t num_tokens = std::ssize(answer.token_ids);
    return {{"input_tokens", input},
            {"input_tokens_details",
             {{"cached_tokens", output.num_cached_tokens}, {"cache_write_tokens", 0}}},
            {"output_tokens", num_tokens},
            {"output_tokens_details", {{"reasoning_tokens", num_reasoning_tokens(answer)}}},
            {"total_tokens", input + num_tokens}};
  }

  Json logprobs_of(const TokensView& tokens) const {
    if (tokens.logprobs.empty()) return Json::array();
    std::string text;
    append_token_logprobs(text, tokens, token_text_);
    return Json::parse(text);
  }

  void keep(const std::string& response) {
    if (request_.input.empty()) return;
    auto stored = std::make_shared<StoredResponse>();
    stored->id = response_.id();
    stored->response = response;
    stored->num_input_items = request_.num_input_items;
    stored->items = std::move(request_.input);
    if (!response_.items().empty()) {
      stored->items.back() = ',';
      stored->items.append(dump_json(response_.items()), 1);
    }
    stored->previous = std::move(request_.previous);
    store_.add(std::move(stored));
  }

  // -- Events. Their sequence_number is their place in the stream.

  static void send(HttpReply& stream, std::string_view type, const Json& members) {
    Json event = {{"type", type}, {"sequence_number", stream.num_events()}};
    event.update(members);
    stream.add_event(dump_json(event), type);
  }
  static void send_response(HttpReply& stream, std::string_view type, const std::string& response) {
    std::string data = R"({"type":")";
    (data += type) += R"(","sequence_number":)";
    append_number(data, static_cast<int64_t>(stream.num_events()));
    (data += R"(,"response":)") += response;
    stream.add_event(data + '}', type);
  }
  /// Sends an event of an item: of the one that is open, unless another id is given.
  void send(HttpReply& stream, std::string_view type, Json members, const std::string& item_id) {
    members["item_id"] = item_id;
    members["output_index"] = response_.items().size();
    send(stream, type, members);
  }
  void send_item(HttpReply& stream, std::string_view type, Json item) {
    send(stream, type, {{"output_index", response_.items().size()}, {"item", std::move(item)}});
  }

  void open(HttpReply& stream, Kind kind) {
    if (open_ == kind) return;
    close(stream, /*is_complete=*/true);
    open_ = kind;
    item_id_ = response_.next_id(kind == Kind::kText ? "msg" : "rs");
    send_item(stream, "response.output_item.added",
              kind == Kind::kText ? message_item(item_id_, "in_progress", "")
                                  : reasoning_item(item_id_, "in_progress", ""));
    send(stream, "response.content_part.added",
         {{"content_index", 0}, {"part", kind == Kind::kText ? text_part("") : thoughts_part("")}},
         item_id_);
  }

  /// Adds the event of a piece. There is one for each token, so it is written without a tree of
  /// Json.
  void add_delta(HttpReply& stream, const std::string& piece, const TokensView& tokens) {
    text_ += piece;
    const bool is_text = open_ == Kind::kText;
    const std::string_view type =
        is_text ? "response.output_text.delta" : "response.reasoning_text.delta";
    std::string data = R"({"type":")";
    data += type;
    append_member(data, R"(","sequence_number":)", static_cast<int64_t>(stream.num_events()));
    append_member(data, R"(,"item_id":")" + item_id_ + R"(","output_index":)",
                  std::ssize(response_.items()));
    append_member(data, R"(,"content_index":0,"delta":)", piece);
    if (is_text) {
      data += R"(,"logprobs":)";
      if (tokens.logprobs.empty()) data += "[]";
      else append_token_logprobs(data, tokens, token_text_);
    }
    stream.add_event(data + '}', type);
    if (is_text)
      for (Json& entry : logprobs_of(tokens)) logprobs_.push_back(std::move(entry));
  }

  void close(HttpReply& stream, bool is_complete) {
    if (!open_) return;
    const bool is_text = open_ == Kind::kText;
    const ItemStatus status = is_complete ? "completed" : "incomplete";
    Json done = {{"content_index", 0}, {"text", text_}};
    if (is_text) done["logprobs"] = logprobs_;
    send(stream, is_text ? "response.output_text.done" : "response.reasoning_text.done",
         std::move(done), item_id_);
    send(stream, "response.content_part.done",
         {{"content_index", 0},
          {"part", is_text ? text_part(text_, logprobs_) : thoughts_part(text_)}},
         item_id_);
    Json item = is_text ? message_item(item_id_, status, text_, std::move(logprobs_))
                        : reasoning_item(item_id_, status, text_);
    send_item(stream, "response.output_item.done", item);
    response_.add(std::move(item));
    open_.reset();
    text_.clear();
    logprobs_ = Json::array();
  }

  void add_call(HttpReply& stream, const ToolCall& call) {
    close(stream, /*is_complete=*/true);
    const std::string id = response_.next_id("fc");
    send_item(stream, "response.output_item.added", call_item(id, "in_progress", call));
    send(stream, "response.function_call_arguments.delta", {{"delta", call.arguments}}, id);
    send(stream, "response.function_call_arguments.done",
         {{"name", call.name}, {"arguments", call.arguments}}, id);
    Json item = call_item(id, "completed", call);
    send_item(stream, "response.output_item.done", item);
    response_.add(std::move(item));
  }

  ResponsesRequest request_;
  const Conversation conversation_;
  const TokenText token_text_;
  ResponseStore& store_;
  ResponseObject response_;

  bool has_thoughts_ = false;

  // Only for a stream:
  AnswerParser parser_;
  std::optional<Kind> open_;  // the kind of the item that is open, if one is
  std::string item_id_, text_;
  Json logprobs_ = Json::array();
};

ResponsesRequest read(const Serving& serving, const std::string& body) {
  return responses_request(parse_json(body, "the body", kMaxConversationBytes), serving.defaults,
                           *serving.responses);
}

}  // namespace

Generation read_response(const Serving& serving, const std::string& body,
                         const std::stop_token& stop) {
  ResponsesRequest request = read(serving, body);
  ChatRequest& chat = request.chat;
  ResponseObject response(new_id("resp_"), serving.name_of(chat.model), std::move(request.echo));
  Generation generation;
  Conversation conversation = add_conversation(serving, chat, generation, stop);
  generation.writer = std::make_unique<ResponseWriter>(
      std::move(request), std::move(response), std::move(conversation),
      token_text_of(serving.vocabulary), *serving.responses);
  return generation;
}

std::string count_input_response(const Serving& serving, const std::string& body,
                                 const std::stop_token& stop) {
  ResponsesRequest request = read(serving, body);
  serving.name_of(request.chat.model);
  const Conversation conversation = read_conversation(serving, request.chat, stop);
  const Json counts = {{"object", "response.input_tokens"},
                       {"input_tokens", conversation.prompt.size()}};
  return dump_json(counts);
}

std::string input_items_response(const StoredResponse& response) {
  Json items = parse_json(response.items, "a stored response");
  Json shown = Json::array();
  for (size_t i = 0; i < response.num_input_items; ++i)
    shown.push_back(
        shown_input_item(std::move(items[i]), ResponseStore::item_id("in", response.id, i)));
  const Json list = {{"object", "list"},
                     {"data", shown},
                     {"first_id", shown.front()["id"]},
                     {"last_id", shown.back()["id"]},
                     {"has_more", false}};
  return dump_json(list);
}

}  // namespace nanovllm::server
