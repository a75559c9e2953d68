#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::server {

/// A call of a function that the model asks for.
struct ToolCall {
  int index = 0;  // among the calls of the answer, from 0
  std::string id;
  std::string name;
  std::string arguments;  // the text of a JSON object, as the model wrote it
};

/// An answer, or what a piece of text adds to it.
struct AnswerParts {
  std::string reasoning = {};
  std::string content = {};
  std::vector<ToolCall> calls = {};

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
  void append(AnswerParts more);
};

/// Divides the text of an answer into thoughts, content and tool calls while it is generated, for
/// models that write as Qwen3 does:
///   <think> thoughts </think> content <tool_call> {"name": "f", "arguments": {...}} </tool_call>
/// The parts do not depend on how the text is divided into pieces. The time is proportional to the
/// length of the text (progress.bounded-work), and each of its bytes is in one of the parts, except
/// for the tags, the JSON around the arguments, and white space next to a tag:
/// - Thoughts are only at the beginning, and have no newlines at their ends. The newlines between
///   them and the content are dropped. If the answer is cut off in the thoughts, it has no content.
/// - A call is delivered when it is complete. The JSON has a "name" that was offered, and
///   "arguments" (or "parameters") that are an object or a string with the text of one. If the
///   answer ends after the JSON, the closing tag may be missing. What looks like a call but is none
///   is content, unchanged.
/// - White space before a call is dropped. White space after a call is content only between two
///   other texts of the content.
class AnswerParser {
 public:
  struct Options {
    /// Otherwise the tags of thoughts are content.
    bool splits_reasoning = false;
    /// The prompt ended with <think>. A <think> that the model repeats is dropped.
    bool begins_in_reasoning = false;
    /// The functions that may be called. If there are none, the tags of calls are content.
    std::vector<std::string> tool_names = {};
    /// Otherwise only the first call of an answer is delivered.
    bool parallel_calls = true;
  };

  explicit AnswerParser(Options options);

  /// What the next piece of the text adds to the answer. Text that may still become a tag or a call
  /// is held back.
  AnswerParts add(std::string_view piece);
  /// The rest. Nothing may be added afterwards.
  AnswerParts finish();

 private:
  enum class State {
    kBeginning,  // <think> may follow
    kThoughts,
    kContent,
    kJson,      // after <tool_call>
    kAfterJson  // </tool_call> must follow
  };

  void read(char c, AnswerParts& parts);
  bool read_text(char c, std::string_view tag, std::string_view spaces, AnswerParts& parts);
  void read_json(char c, AnswerParts& parts);
  void drop_held_and_enter(State state);
  void leave_beginning(AnswerParts& parts);
  void end_call(AnswerParts& parts);
  void give_up_call(char c, AnswerParts& parts);
  void deliver(AnswerParts& parts);

  Options options_;
  State state_;
  std::string held_;           // not delivered yet: white space, then perhaps a tag or a call
  size_t matched_ = 0;         // bytes of the current tag at the end of held_
  std::string_view skipped_;   // characters that are dropped until another one comes
  bool has_content_ = false;   // some content was delivered
  bool follows_call_ = false;  // only white space came since the last call
  int num_calls_ = 0;

  // Of the JSON in held_, which ends where its brackets are balanced.
  size_t json_begin_ = 0, json_end_ = 0;
  size_t depth_ = 0;  // open brackets
  bool in_string_ = false, escaped_ = false;
};

/// The parts of a whole answer.
AnswerParts parse_answer(std::string_view text, AnswerParser::Options options);

}  // namespace nanovllm::server
