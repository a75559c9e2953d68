#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/server/conversation/answer_parser.h"

namespace nanovllm::server::testing {

inline const AnswerParser::Options kPlain{};
inline const AnswerParser::Options kReasoning{.splits_reasoning = true};
inline const AnswerParser::Options kBegun{.splits_reasoning = true, .begins_in_reasoning = true};
inline const AnswerParser::Options kTools{.tools = {"f", "get_weather"}};
inline const AnswerParser::Options kAll{.splits_reasoning = true, .tools = {"f", "get_weather"}};
inline const AnswerParser::Options kAllBegun{
    .splits_reasoning = true, .begins_in_reasoning = true, .tools = {"f", "get_weather"}};
inline const AnswerParser::Options kEveryOption[] = {kPlain, kReasoning, kBegun,
                                                     kTools, kAll,       kAllBegun};

/// The parts in one line: thoughts in [], then the content, then "| name(arguments)" for each call.
inline std::string shown(const AnswerParts& parts) {
  std::string out = parts.reasoning.empty() ? "" : "[" + parts.reasoning + "]";
  out += parts.content;
  for (const ToolCall& call : parts.calls) out += "|" + call.name + "(" + call.arguments + ")";
  return out;
}

/// The parts of the text, which must be the same for every cut into two pieces and for single
/// bytes.
inline std::string parsed(std::string_view text, const AnswerParser::Options& options) {
  const std::string whole = shown(parse_answer(text, options));
  const auto in_pieces = [&](const std::vector<std::string_view>& pieces) {
    AnswerParser parser(options);
    AnswerParts joined;
    for (const std::string_view piece : pieces) joined.append(parser.add(piece));
    joined.append(parser.finish());
    return shown(joined);
  };
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_EQ(in_pieces({text.substr(0, i), text.substr(i)}), whole) << text;
    bytes.push_back(text.substr(i, 1));
  }
  EXPECT_EQ(in_pieces(bytes), whole) << text;
  return whole;
}

inline void expect_is_content(const std::string& text, const AnswerParser::Options& options) {
  const AnswerParts answer = parse_answer(text, options);
  EXPECT_EQ(answer.content, text);
  EXPECT_EQ(answer.reasoning, "") << text;
  EXPECT_TRUE(answer.calls.empty()) << text;
}

inline std::string call_of(const std::string& arguments, const std::string& name = "f") {
  return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments +
         "}\n</tool_call>";
}

}  // namespace nanovllm::server::testing
