#include "nanovllm/server/openai/chunks.h"

#include <algorithm>

#include "nanovllm/server/http/json_text.h"

namespace nanovllm::server {

namespace {

void append_tool_calls(std::string& to, std::span<const ToolCallDelta> calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    const ToolCallDelta& call = calls[i];
    to += i == 0 ? R"([{"index":)" : R"(,{"index":)";
    append_number(to, call.index);
    if (!call.id.empty()) {
      append_member(to, R"(,"id":)", call.id);
      to += R"(,"type":"function")";
    }
    to += R"(,"function":{)";
    if (!call.name.empty()) {
      append_member(to, R"("name":)", call.name);
      to += ',';
    }
    append_member(to, R"("arguments":)", call.arguments);
    to += "}}";
  }
  to += ']';
}

}  // namespace

ChunkFrame::ChunkFrame(const ResponseHead& head, std::string_view object,
                       const ChunkOptions& options)
    : start_(response_start(head, object) + R"([{"index":)"),
      no_choice_(response_start(head, object) + R"([],"usage":)"),
      options_(options) {}

void ChunkFrame::begin(std::string& to, int64_t choice) const {
  to += start_;
  append_number(to, choice);
}

void ChunkFrame::end(std::string& to, const TokensView& tokens, const ChunkEnd& end,
                     const Usage* usage) const {
  to += R"(,"finish_reason":)";
  if (end.finish_reason.empty()) {
    to += "null";
  } else {
    append_json_string(to, end.finish_reason);
    to += R"(,"stop_reason":)";
    if (end.stop_reason == nullptr) to += "null";
    else append_stop_reason(to, *end.stop_reason);
  }
  if (options_.token_ids) {
    append_member(to, R"(,"token_ids":)", tokens.ids);
  }
  to += "}]";
  if (usage == nullptr && !options_.null_usage) return;
  to += R"(,"usage":)";
  if (usage == nullptr) to += "null";
  else append_usage(to, *usage);
}

void ChunkFrame::usage(std::string& to, const Usage& usage) const {
  to += no_choice_;
  append_usage(to, usage);
  to += '}';
}

void ChatChunks::begin(std::string& to, int64_t choice, std::span<const int32_t> prompt_token_ids,
                       const Usage* usage) const {
  frame_.begin(to, choice);
  to += R"(,"delta":{"role":"assistant","content":""},"logprobs":null)";
  frame_.end(to, {}, {}, usage);
  if (frame_.options().token_ids) {
    append_member(to, R"(,"prompt_token_ids":)", prompt_token_ids);
  }
  to += '}';
}

void ChatChunks::add(std::string& to, int64_t choice, const Piece& piece,
                     const Usage* usage) const {
  frame_.begin(to, choice);
  to += R"(,"delta":{)";
  const size_t empty = to.size();
  const auto append_name = [&](std::string_view name) {
    if (to.size() != empty) to += ',';
    to += name;
  };
  if (!piece.reasoning.empty()) append_reasoning(to, piece.reasoning);
  if (!piece.content.empty()) {
    append_name(R"("content":)");
    append_json_string(to, piece.content);
  }
  if (!piece.tool_calls.empty()) {
    append_name(R"("tool_calls":)");
    append_tool_calls(to, piece.tool_calls);
  }
  to += R"(},"logprobs":)";
  append_chat_logprobs(to, piece.tokens, frame_.options().token_text);
  frame_.end(to, piece.tokens, piece.end, usage);
  to += '}';
}

void CompletionChunks::add(std::string& to, int64_t choice, const Piece& piece, TextOffset& offset,
                           const Usage* usage) const {
  frame_.begin(to, choice);
  append_member(to, R"(,"text":)", piece.text);
  to += R"(,"logprobs":)";
  append_completion_logprobs(to, {}, {}, piece.tokens, offset, frame_.options().token_text);
  if (!piece.prompt_token_ids.empty()) {
    append_member(to, R"(,"prompt_token_ids":)", piece.prompt_token_ids);
  }
  frame_.end(to, piece.tokens, piece.end, usage);
  to += '}';
}

}  // namespace nanovllm::server
