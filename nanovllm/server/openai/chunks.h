#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/server/http/http.h"
#include "nanovllm/server/openai/response.h"

// The chunks of streams of OpenAI's API. What they have in common is written once for a response,
// and a chunk is appended to the caller's buffer, without a newline and without "data: ".
namespace nanovllm::server {

struct ChunkOptions {
  TokenText token_text;    ///< needed for log-probabilities
  bool token_ids = false;  ///< return_token_ids
  /// Chunks without usage say so by null. OpenAI's chat API does that if the client asks for the
  /// usage; its schema of completions does not allow it.
  bool null_usage = false;
};

// The spans and views of what is written need to live only during the call.

/// Whether and why an answer ends with a chunk.
struct ChunkEnd {
  std::string_view finish_reason = {};  ///< as finish_reason_of(); empty while the answer grows
  const std::optional<StopReason>* stop_reason = nullptr;  ///< of an answer that has ended
};

/// A piece of a tool call. The first piece of a call has its id and name.
struct ToolCallDelta {
  int64_t index = 0;         ///< of the call in its message
  std::string_view id = {};  ///< empty in later pieces
  std::string_view name = {};
  std::string_view arguments = {};
};

/// The start and the end of every chunk.
class ChunkFrame {
 public:
  ChunkFrame(const ResponseHead& head, std::string_view object, const ChunkOptions& options);

  void begin(std::string& to, int64_t choice) const;
  /// `usage`: the usage so far, for continuous_usage_stats; null: none.
  void end(std::string& to, const TokensView& tokens, const ChunkEnd& end,
           const Usage* usage) const;
  /// The last chunk, which has no choice.
  void usage(std::string& to, const Usage& usage) const;
  const ChunkOptions& options() const { return options_; }

 private:
  std::string start_, no_choice_;
  ChunkOptions options_;
};

/// Chunks of a conversation: for each choice first begin(), then add() for each piece; the last
/// piece has a finish_reason. At the end of the response usage(), if the client asked for it.
class ChatChunks {
 public:
  ChatChunks(const ResponseHead& head, const ChunkOptions& options)
      : frame_(head, "chat.completion.chunk", options) {}

  struct Piece {
    std::string_view content = {}, reasoning = {};  ///< empty: absent
    std::span<const ToolCallDelta> tool_calls = {};
    TokensView tokens = {};
    ChunkEnd end = {};
  };

  /// The chunk with the role and an empty content; with token_ids, also the prompt's.
  void begin(std::string& to, int64_t choice, std::span<const int32_t> prompt_token_ids = {},
             const Usage* usage = nullptr) const;
  void add(std::string& to, int64_t choice, const Piece& piece, const Usage* usage = nullptr) const;
  void usage(std::string& to, const Usage& usage) const { frame_.usage(to, usage); }

 private:
  ChunkFrame frame_;
};

/// Chunks of completions. With `echo`, the first piece of each choice is the text of the prompt.
class CompletionChunks {
 public:
  CompletionChunks(const ResponseHead& head, const ChunkOptions& options)
      : frame_(head, "text_completion", options) {}

  struct Piece {
    std::string_view text = {};
    TokensView tokens = {};
    std::span<const int32_t> prompt_token_ids = {};  ///< shown if not empty
    ChunkEnd end = {};
  };

  /// `offset`: where the piece's tokens begin in the answer; it is moved behind them.
  void add(std::string& to, int64_t choice, const Piece& piece, TextOffset& offset,
           const Usage* usage = nullptr) const;
  void usage(std::string& to, const Usage& usage) const { frame_.usage(to, usage); }

 private:
  ChunkFrame frame_;
};

/// The events after the last answer has ended. `usage` is written if the client asked for it.
template <class Chunks>
void end_stream(HttpReply& stream, const Chunks& chunks, bool include_usage, const Usage& usage) {
  if (include_usage) {
    std::string chunk;
    chunks.usage(chunk, usage);
    stream.add_event(chunk);
  }
  stream.add_event("[DONE]");
}

}  // namespace nanovllm::server
