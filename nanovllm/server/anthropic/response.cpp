#include "nanovllm/server/anthropic/response.h"

#include <variant>

#include "nanovllm/server/http/json_text.h"

namespace nanovllm::server {

namespace {

/// Appends the beginning of a block: {"type" and the fields of this kind of block, without contents
/// and without the closing brace.
void append_block_head(std::string& to, BlockKind kind, const ToolCall* call) {
  if (kind == BlockKind::kThinking) {
    // Only Anthropic can sign thoughts. Clients send the field back, and it is ignored.
    to += R"({"type":"thinking","signature":"","thinking":)";
  } else if (kind == BlockKind::kText) {
    to += R"({"type":"text","text":)";
  } else {
    append_member(to, R"({"type":"tool_use","id":)", call->id);
    append_member(to, R"(,"name":)", call->name);
    to += R"(,"input":)";
  }
}

void append_content(std::string& to, const AnswerParts& parts) {
  to += '[';
  const size_t empty = to.size();
  const auto begin = [&](BlockKind kind, const ToolCall* call) {
    if (to.size() != empty) to += ',';
    append_block_head(to, kind, call);
  };
  if (!parts.reasoning.empty()) {
    begin(BlockKind::kThinking, nullptr);
    append_json_string(to, parts.reasoning);
    to += '}';
  }
  if (!parts.content.empty()) {
    begin(BlockKind::kText, nullptr);
    append_json_string(to, parts.content);
    to += '}';
  }
  for (const ToolCall& call : parts.calls) {
    begin(BlockKind::kToolUse, &call);
    to += call.arguments;  // the text of a JSON object
    to += '}';
  }
  to += ']';
}

void append_end(std::string& to, const MessageEnd& end) {
  const auto* const sequence =
      end.stop_reason ? std::get_if<std::string>(&*end.stop_reason) : nullptr;
  to += R"("stop_reason":)";
  if (end.reason.empty()) to += "null";
  else if (end.reason == "length") to += R"("max_tokens")";
  else if (sequence != nullptr) to += R"("stop_sequence")";
  else to += end.has_calls ? R"("tool_use")" : R"("end_turn")";
  to += R"(,"stop_sequence":)";
  if (sequence == nullptr) to += "null";
  else append_json_string(to, *sequence);
}

/// Appends the usage. In Anthropic's API, input_tokens are only those that were not in the cache.
void append_usage(std::string& to, const MessageUsage& usage) {
  append_member(to, R"("usage":{"input_tokens":)", usage.prompt_tokens - usage.cached_tokens);
  append_member(to, R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)",
                usage.cached_tokens);
  append_member(to, R"(,"output_tokens":)", usage.output_tokens);
  to += '}';
}

void append_event_of_block(std::string& to, std::string_view type, int64_t index) {
  to += R"({"type":")";
  to += type;
  append_member(to, R"(","index":)", index);
}

}  // namespace

void append_message(std::string& to, const MessageHead& head, const AnswerParts& parts,
                    const MessageEnd& end, const MessageUsage& usage) {
  append_member(to, R"({"id":)", head.id);
  append_member(to, R"(,"type":"message","role":"assistant","model":)", head.model);
  to += R"(,"content":)";
  append_content(to, parts);
  to += ',';
  append_end(to, end);
  to += ',';
  append_usage(to, usage);
  to += '}';
}

void append_message_start(std::string& to, const MessageHead& head, int64_t prompt_tokens) {
  to += R"({"type":"message_start","message":)";
  append_message(to, head, {}, {}, {.prompt_tokens = prompt_tokens});
  to += '}';
}

void append_message_delta(std::string& to, const MessageEnd& end, const MessageUsage& usage) {
  to += R"({"type":"message_delta","delta":{)";
  append_end(to, end);
  to += "},";
  append_usage(to, usage);
  to += '}';
}

void append_block_start(std::string& to, int64_t index, BlockKind kind, const ToolCall* call) {
  append_event_of_block(to, "content_block_start", index);
  to += R"(,"content_block":)";
  append_block_head(to, kind, call);
  to += kind == BlockKind::kToolUse ? "{}}}" : R"(""}})";
}

void append_block_delta(std::string& to, int64_t index, BlockKind kind, std::string_view piece) {
  append_event_of_block(to, "content_block_delta", index);
  if (kind == BlockKind::kThinking) to += R"(,"delta":{"type":"thinking_delta","thinking":)";
  else if (kind == BlockKind::kText) to += R"(,"delta":{"type":"text_delta","text":)";
  else to += R"(,"delta":{"type":"input_json_delta","partial_json":)";
  append_json_string(to, piece);
  to += "}}";
}

void append_block_stop(std::string& to, int64_t index) {
  append_event_of_block(to, "content_block_stop", index);
  to += '}';
}

}  // namespace nanovllm::server
