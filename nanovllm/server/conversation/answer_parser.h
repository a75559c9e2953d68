#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/server/conversation/calls/call_form.h"
#include "nanovllm/server/conversation/hidden_tags.h"

namespace nanovllm::server {

// Neither tag has a second '<'. So if a tag breaks off, a tag can only begin at the place where it
// broke off.
inline constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";

/// A call of a function that the model asks for.
struct ToolCall {
  int index = 0;  // among the calls of the answer, from 0
  std::string id;
  std::string name;
  std::string arguments;  // the text of a JSON object, as the model wrote it
};

/// An answer, or the parts that a piece of text adds to it.
struct AnswerParts {
  std::string reasoning = {};
  std::string content = {};
  std::vector<ToolCall> calls = {};

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  void append(AnswerParts more);
};

/// Divides the text of an answer into thoughts, content and tool calls while it is generated:
///   <think> thoughts </think> content, calls in the form of the model (calls/readers.h)
/// The parts do not depend on how the text is divided into pieces. The time is proportional to the
/// length of the text (progress.bounded-work). Each byte of the text is in one of the parts, except
/// tags, the syntax around the names and arguments of calls, and white space next to a tag:
/// - Thoughts are only at the beginning, and have no newlines at their ends. The newlines between
///   them and the content are dropped. If the answer is cut off in the thoughts, it has no content.
/// - A call is delivered when it is complete. Text that only looks like a call is content,
/// unchanged,
///   and so is a call of a function that was not offered.
/// - White space before a call is dropped. White space after a call is content only between two
///   other texts of the content.
class AnswerParser {
 public:
  struct Options {
    /// Splits off thoughts. If false, the tags of thoughts are content.
    bool splits_reasoning = false;
    /// The prompt ended with <think>. A <think> that the model repeats is dropped.
    bool begins_in_reasoning = false;
    CallForm call_form = CallForm::kTags;
    /// The functions that may be called. If there are none, the tags of calls are content.
    OfferedTools tools = {};
    /// Delivers all calls of an answer. If false, only the first one is delivered.
    bool parallel_calls = true;
    /// Tags that are no part of thoughts or content, because they are special tokens that the text
    /// contains only for the parser.
    std::vector<std::string_view> hidden_tags = {};
  };

  explicit AnswerParser(const Options& options);

  /// Returns the parts that the next piece of the text adds. Text that may still become a tag or a
  /// call is held back.
  AnswerParts add(std::string_view piece);
  /// Returns the parts that were held back. Nothing may be added afterwards.
  AnswerParts finish();

 private:
  enum class State {
    kBeginning,  // <think> may follow
    kThoughts,
    kContent,
    kCalls  // calls_ reads the text
  };

  void read(char c, AnswerParts& parts);
  void read_thoughts(char c, AnswerParts& parts);
  void read_content(char c, AnswerParts& parts);
  void read_calls(char c, AnswerParts& parts);
  void drop_held_and_enter(State state, AnswerParts& parts);
  void leave_beginning(AnswerParts& parts);
  void give_up_call(AnswerParts& parts);
  void deliver_calls(AnswerParts& parts);
  void deliver(AnswerParts& parts);

  const bool begins_in_reasoning_, parallel_calls_;
  const CallForm call_form_;
  CallReaderPtr calls_;  // null if there are no tools
  HiddenTags hidden_tags_;
  State state_;
  std::string held_;           // not delivered yet: white space, then perhaps a tag or a call
  size_t matched_ = 0;         // bytes of the tag of thoughts at the end of held_
  std::string_view skipped_;   // characters that are dropped until another one comes
  bool has_content_ = false;   // some content was delivered
  bool follows_call_ = false;  // only white space came since the last call
  int num_calls_ = 0;
};

/// The parts of a whole answer.
AnswerParts parse_answer(std::string_view text, const AnswerParser::Options& options);

}  // namespace nanovllm::server
