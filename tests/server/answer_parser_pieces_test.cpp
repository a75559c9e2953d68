#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "answer_parser_checks.h"

namespace nanovllm::server {
namespace {

using namespace server::testing;

using ::testing::StartsWith;

// Pieces

TEST(AnswerParserPieces, TextIsHeldBackOnlyWhileItMayBecomeATag) {
  AnswerParser parser(kTools);
  const std::pair<const char*, const char*> steps[] = {{"a", "a"},
                                                       {" ", ""},
                                                       {"b", " b"},
                                                       {"<", ""},
                                                       {"<", "<"},
                                                       {"too", ""},
                                                       {"k", "<took"},
                                                       {"\n<tool_", ""},
                                                       {"x", "\n<tool_x"},
                                                       {"<tool_call>", ""},
                                                       {"\n ", ""},
                                                       {"y", "<tool_call>\n y"},
                                                       {"z</tool_call>", "z</tool_call>"}};
  for (const auto& [piece, delivered] : steps)
    EXPECT_EQ(shown(parser.add(piece)), delivered) << piece;
  EXPECT_TRUE(parser.finish().empty());
}

TEST(AnswerParserPieces, ThoughtsAreDeliveredWhileTheyAreWritten) {
  AnswerParser parser(kAll);
  const std::pair<const char*, const char*> steps[] = {
      {"<th", ""},    {"ink>\n", ""}, {"a", "[a]"}, {" b", "[ b]"}, {"\n", ""},
      {"c", "[\nc]"}, {"\n</th", ""}, {"ink>", ""}, {"\n\n", ""},   {"d", "d"}};
  for (const auto& [piece, delivered] : steps)
    EXPECT_EQ(shown(parser.add(piece)), delivered) << piece;
  EXPECT_TRUE(parser.finish().empty());
}

TEST(AnswerParserPieces, ACallIsDeliveredWithItsClosingTag) {
  AnswerParser parser(kTools);
  const std::string call = call_of("{}");
  for (const char c : call.substr(0, call.size() - 1))
    EXPECT_TRUE(parser.add(std::string(1, c)).empty());
  EXPECT_EQ(shown(parser.add(">")), "|f({})");
  EXPECT_TRUE(parser.finish().empty());
}

TEST(AnswerParserPieces, WithoutTagsToLookForNothingIsHeldBack) {
  AnswerParser parser(kPlain);
  for (const char* piece : {" ", "<", "<think>", "\n", "<tool_call>{"})
    EXPECT_EQ(shown(parser.add(piece)), piece);
}

TEST(AnswerParserPieces, AnEmptyPieceAddsNothing) {
  AnswerParser parser(kAll);
  EXPECT_TRUE(parser.add("").empty());
  EXPECT_TRUE(parser.finish().empty());
}

/// Texts of tags, parts of tags, and what may be between them.
class RandomTexts {
 public:
  std::string next() {
    static const std::vector<std::string> fragments = {
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<",
        "<t",
        "<th",
        "</",
        "</tool_",
        "<tool_c",
        "\n",
        "\n\n",
        " ",
        "a",
        "text",
        "é",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ",",
        ":",
        "{\"name\": \"f\", \"arguments\": ",
        "{\"name\": \"g\", \"arguments\": {}}",
        "{}}",
        "{\"a\": \"b\"}}",
        "{\"name\": \"f\", \"arguments\": {}}",
        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call>\"}}\n</tool_call>"};
    std::string text;
    for (size_t i = below(20); i > 0; --i) text += fragments[below(fragments.size())];
    return text;
  }
  size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }

 private:
  std::mt19937 random_{42};
};

TEST(AnswerParserPieces, AnyPiecesGiveTheSameAsTheWhole) {
  RandomTexts texts;
  size_t num_calls = 0, num_thoughts = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = texts.next();
    for (const AnswerParser::Options& options : kEveryOption) {
      const AnswerParts whole = parse_answer(text, options);
      AnswerParser parser(options);
      AnswerParts joined;
      const size_t longest = 1 + texts.below(12);
      for (size_t at = 0; at < text.size();) {
        const size_t len = 1 + texts.below(longest);
        joined.append(parser.add(std::string_view(text).substr(at, len)));
        at += len;
      }
      joined.append(parser.finish());
      ASSERT_EQ(shown(joined), shown(whole)) << text;
      ASSERT_EQ(joined.reasoning, whole.reasoning) << text;
      for (size_t n = 0; n < joined.calls.size(); ++n) ASSERT_EQ(joined.calls[n].index, n) << text;
      num_calls += whole.calls.size();
      num_thoughts += !whole.reasoning.empty();
    }
  }
  EXPECT_GT(num_calls, 1000);  // otherwise the texts would test little
  EXPECT_GT(num_thoughts, 1000);
}

std::string without_spaces(std::string text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n'; });
  return text;
}

TEST(AnswerParserPieces, NothingIsLost) {
  RandomTexts texts;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = texts.next();
    // The parts in the order of the text, with calls as the texts have them.
    AnswerParser parser(kTools);
    std::string joined;
    const auto join = [&](const AnswerParts& parts) {
      joined += parts.content;
      for (const ToolCall& call : parts.calls) joined += call_of(call.arguments, call.name);
    };
    for (const char c : text) join(parser.add(std::string(1, c)));
    join(parser.finish());
    // The closing tag of a call at the end may be missing in the text.
    ASSERT_THAT(without_spaces(joined), StartsWith(without_spaces(text)));
    ASSERT_LE(without_spaces(joined).size(), without_spaces(text).size() + 12) << text;
  }
}

TEST(AnswerParserPieces, WithoutCallsAndThoughtsTheTextIsUnchanged) {
  RandomTexts texts;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = texts.next();
    expect_is_content(text, kPlain);
    expect_is_content(text, {.tools = {"not in the texts"}});
    expect_is_content("a" + text, {.splits_reasoning = true, .tools = {"not in the texts"}});
  }
}

TEST(AnswerParserPieces, ThoughtsAreTheTextBeforeTheFirstClosingTag) {
  RandomTexts texts;
  const auto drop = [](std::string text, bool front, bool back) {
    if (front) text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
    if (back) text.resize(text.find_last_not_of('\n') + 1);
    return text;
  };
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = texts.next();
    const size_t end = text.find("</think>");
    const AnswerParts answer = parse_answer("<think>" + text, kReasoning);
    ASSERT_EQ(answer.reasoning, drop(text.substr(0, end), true, true)) << text;
    ASSERT_EQ(answer.content,
              end == std::string::npos ? "" : drop(text.substr(end + 8), true, false));
  }
}

// Each of these texts has a megabyte. A parser that reads or moves the text again for each of its
// tags would take hours.
TEST(AnswerParserHostile, TheTimeIsProportionalToTheText) {
  const std::vector<std::string> patterns = {"<",
                                             "<t",
                                             "<tool_call>",
                                             "<tool_call>{",
                                             "<tool_call>{\"",
                                             "<tool_call>{\"\n",
                                             "{",
                                             "[",
                                             "\"",
                                             "\\",
                                             " ",
                                             "\n",
                                             "<think>",
                                             "</think>",
                                             "\n<",
                                             "<think></think>",
                                             "</tool_call>",
                                             "<tool_call>{}</tool_call>",
                                             "<tool_call>{}",
                                             "\\\"",
                                             call_of("{}"),
                                             call_of("{}", "g")};
  const std::vector<std::string> beginnings = {
      "", "<think>", "a<tool_call>", "<tool_call>{",
      "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \""};
  for (const std::string& beginning : beginnings) {
    for (const std::string& pattern : patterns) {
      std::string text = beginning;
      while (text.size() < 1'000'000) text += pattern;
      AnswerParser parser(kAll);
      size_t num_bytes = 0;
      for (size_t at = 0; at < text.size(); at += 3) {
        const AnswerParts parts = parser.add(std::string_view(text).substr(at, 3));
        num_bytes += parts.reasoning.size() + parts.content.size();
      }
      const AnswerParts rest = parser.finish();
      EXPECT_LE(num_bytes + rest.reasoning.size() + rest.content.size(), text.size());
    }
  }
}

TEST(AnswerParserHostile, AMegabyteThatIsNoTagIsContent) {
  for (const char* pattern : {"<", "{", "<tool_call>", "<tool_call>{\"", "</think>", "<too"}) {
    std::string text;
    while (text.size() < 1'000'000) text += pattern;
    EXPECT_TRUE(parse_answer(text, kAll).content == text) << pattern;
  }
}

TEST(AnswerParserHostile, ALongArgumentIsACall) {
  const std::string arguments = "{\"a\": \"" + std::string(1'000'000, 'x') + "\"}";
  const AnswerParts answer = parse_answer(call_of(arguments), kTools);
  ASSERT_EQ(answer.calls.size(), 1);
  EXPECT_TRUE(answer.calls[0].arguments == arguments);
}

}  // namespace
}  // namespace nanovllm::server
