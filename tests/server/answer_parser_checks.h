#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "nanovllm/server/conversation/answer_parser.h"

namespace nanovllm::server::testing {

inline const AnswerParser::Options kPlain{};
inline const AnswerParser::Options kReasoning{.splits_reasoning = true};
inline const AnswerParser::Options kBegun{.splits_reasoning = true, .begins_in_reasoning = true};
inline const AnswerParser::Options kTools{.tool_names = {"f", "get_weather"}};
inline const AnswerParser::Options kAll{.splits_reasoning = true,
                                        .tool_names = {"f", "get_weather"}};
inline const AnswerParser::Options kAllBegun{
    .splits_reasoning = true, .begins_in_reasoning = true, .tool_names = {"f", "get_weather"}};
inline const AnswerParser::Options kEveryOption[] = {kPlain, kReasoning, kBegun,
                                                     kTools, kAll,       kAllBegun};

/// The parts in one line: thoughts in [], then the content, then "| name(arguments)" for each call.
inline std::string shown(const AnswerParts& parts) {
  std::string out = parts.reasoning.empty() ? "" : "[" + parts.reasoning + "]";
  out += parts.content;
  for (const ToolCall& call : parts.calls) out += "|" + call.name + "(" + call.arguments + ")";
  return out;
}

inline std::string parsed(std::string_view text, const AnswerParser::Options& options) {
  return shown(parse_answer(text, options));
}

inline void append(AnswerParts& answer, AnswerParts more) {
  answer.reasoning += more.reasoning;
  answer.content += more.content;
  std::move(more.calls.begin(), more.calls.end(), std::back_inserter(answer.calls));
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
