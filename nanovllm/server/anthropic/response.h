#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/base/output.h"
#include "nanovllm/server/conversation/answer_parser.h"

// The responses and events of Anthropic's API, as JSON texts. Each function appends to a buffer.
namespace nanovllm::server {

struct MessageHead {
  std::string id;     ///< "msg_..."
  std::string model;  ///< the name under which the client asked for it
};

struct MessageUsage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  ///< tokens of the prompt that were in the prefix cache
  int64_t output_tokens = 0;
};

/// Why an answer has ended. `reason` is the engine's finish_reason, empty while the answer grows.
struct MessageEnd {
  std::string_view reason = {};
  std::optional<StopReason> stop_reason = std::nullopt;
  bool has_calls = false;
};

/// Appends a message. A message that has not begun has neither parts nor an end.
void append_message(std::string& to, const MessageHead& head, const AnswerParts& parts,
                    const MessageEnd& end, const MessageUsage& usage);

// -- Data of events.

void append_message_start(std::string& to, const MessageHead& head, int64_t prompt_tokens);
void append_message_delta(std::string& to, const MessageEnd& end, const MessageUsage& usage);

enum class BlockKind { kThinking, kText, kToolUse };
/// `call` is needed only for kToolUse.
void append_block_start(std::string& to, int64_t index, BlockKind kind, const ToolCall* call);
/// Appends a piece of thoughts or text, or the text of a call's arguments.
void append_block_delta(std::string& to, int64_t index, BlockKind kind, std::string_view piece);
void append_block_stop(std::string& to, int64_t index);

}  // namespace nanovllm::server
