#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/server/conversation/answer_parser.h"
#include "nanovllm/server/conversation/call_constraint.h"
#include "nanovllm/text/chat_template.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm::server {

/// The values of --tool-call-parser and of --reasoning-parser.
std::vector<std::string> tool_call_parsers();
std::vector<std::string> reasoning_parsers();

/// How a model writes its answers.
class AnswerForm {
 public:
  AnswerForm() = default;
  /// `call_parser` and `reasoning_parser` are values of these options. "auto": calls have the form
  /// that the chat template shows, and thoughts are split off if the tokenizer has the tag <think>.
  /// Throws UserError that lists the values that are known.
  AnswerForm(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
             const std::string& call_parser, const std::string& reasoning_parser);

  /// How the parser reads answers to a request that offers these tools.
  AnswerParser::Options parsing(OfferedTools tools) const;
  const WrittenCalls& written_calls() const { return written_; }
  /// Returns the ids of the special tokens that the parser needs to see, so that the text of the
  /// answer must contain them, and makes the parser hide them from the client.
  std::vector<int32_t> show_tags(AnswerParser::Options& parsing) const;

 private:
  struct Tag {
    std::string_view text;
    int32_t id;
    bool is_of_calls;
  };
  CallForm call_form_ = CallForm::kTags;
  WrittenCalls written_;
  bool splits_reasoning_ = false;
  std::vector<Tag> special_;  // tags that are special tokens
};

}  // namespace nanovllm::server
