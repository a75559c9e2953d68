#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "answer_parser_checks.h"

// What holds for every form of calls.
namespace nanovllm::server {
namespace {

using namespace server::testing;

constexpr CallForm kForms[] = {CallForm::kTags, CallForm::kHermes,   CallForm::kXml,
                               CallForm::kJson, CallForm::kPythonic, CallForm::kMistral};

AnswerParser::Options options_of(CallForm form) {
  return {.splits_reasoning = false, .call_form = form, .tools = {"f", "g"}};
}

/// Texts of calls of all forms, their parts, and what may be between them.
class RandomCalls {
 public:
  std::string next() {
    static const std::vector<std::string> fragments = {
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        "<|python_tag|>",
        "<|python_start|>",
        "<|python_end|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "```json",
        "```",
        "f",
        "g",
        "h",
        "f(",
        ")",
        "a=",
        "'x'",
        "\"x\"",
        "[",
        "]",
        "{",
        "}",
        ",",
        ";",
        ":",
        "\"",
        "'",
        "\\",
        "<",
        ">",
        "=",
        " ",
        "\n",
        "1",
        "True",
        "é",
        "{\"name\": \"f\"",
        "\"arguments\": {",
        "\"parameters\": {}",
        "\"name\"",
        "[f(a=1)",
        "[f(a=1), g()]",
        "{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}",
        "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
        "[TOOL_CALLS]f{\"a\": 1}",
        "[TOOL_CALLS]g[ARGS]{}",
        "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
        "[{\"name\": \"g\", \"parameters\": {}}, {\"name\": \"f\", \"parameters\": {}}]"};
    std::string text;
    for (size_t i = below(16); i > 0; --i) text += fragments[below(fragments.size())];
    return text;
  }
  size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }

 private:
  std::mt19937 random_{7};
};

TEST(AnswerParserForms, AnyPiecesGiveTheSameAsTheWhole) {
  RandomCalls texts;
  std::map<CallForm, size_t> num_calls;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = texts.next();
    for (const CallForm form : kForms) {
      const AnswerParts whole = parse_answer(text, options_of(form));
      AnswerParser parser(options_of(form));
      AnswerParts joined;
      const size_t longest = 1 + texts.below(12);
      for (size_t at = 0; at < text.size();) {
        const size_t len = 1 + texts.below(longest);
        joined.append(parser.add(std::string_view(text).substr(at, len)));
        at += len;
      }
      joined.append(parser.finish());
      ASSERT_EQ(shown(joined), shown(whole)) << text;
      for (const ToolCall& call : whole.calls)
        ASSERT_TRUE(Json::parse(call.arguments).is_object()) << text;
      num_calls[form] += whole.calls.size();
    }
  }
  for (const CallForm form : kForms)  // otherwise the texts would test little
    EXPECT_GT(num_calls[form], 1000) << static_cast<int>(form);
}

/// Whether a text is only what may be dropped after a call: white space, separators, and tags. The
/// last tag may be cut off if the text is `at_end` of an answer.
bool is_droppable(std::string_view text, bool at_end = false) {
  constexpr std::string_view kTokens[] = {
      "</tool_call>", "<|python_end|>", "```", ";", ",", "]", " ", "\n"};
  while (!text.empty()) {
    bool found = false;
    for (const std::string_view token : kTokens) {
      if (at_end && token.starts_with(text)) return true;
      if (!text.starts_with(token)) continue;
      text.remove_prefix(token.size());
      found = true;
      break;
    }
    if (!found) return false;
  }
  return true;
}

/// Follows an answer byte by byte, and checks that each byte becomes content, belongs to a call, or
/// may be dropped.
class Ledger {
 public:
  explicit Ledger(const AnswerParser::Options& options) : options_(options), parser_(options) {}

  ::testing::AssertionResult check(const std::string& text) {
    for (const char c : text) {
      open_ += c;
      if (const auto result = take(parser_.add(std::string(1, c))); !result) return result;
    }
    if (const auto result = take(parser_.finish()); !result) return result;
    if (!is_droppable(open_, /*at_end=*/true))
      return ::testing::AssertionFailure() << "lost: " << open_;
    return ::testing::AssertionSuccess();
  }

 private:
  ::testing::AssertionResult take(const AnswerParts& parts) {
    if (!parts.calls.empty()) {
      // At the end of the answer, content may follow the calls.
      const size_t end = open_.size() - (parts.content.empty() ? 0 : parts.content.size());
      if (!is_calls(open_.substr(0, end), parts))
        return ::testing::AssertionFailure() << open_ << " became " << shown(parts);
      open_.erase(0, end);
    }
    if (parts.content.empty()) return ::testing::AssertionSuccess();
    for (size_t at = open_.rfind(parts.content); at != std::string::npos;
         at = at == 0 ? std::string::npos : open_.rfind(parts.content, at - 1)) {
      if (!is_droppable(open_.substr(0, at))) continue;
      open_.erase(0, at + parts.content.size());
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << open_ << " became " << shown(parts);
  }

  /// Whether the text alone gives these calls. It may be behind the first call of a list.
  bool is_calls(const std::string& text, const AnswerParts& parts) {
    const std::string list = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}";
    const AnswerParts alone = parse_answer(text, options_);
    AnswerParts behind = parse_answer(list + text, options_);
    if (!behind.calls.empty()) behind.calls.erase(behind.calls.begin());
    for (const AnswerParts& again : {alone, behind})
      if (is_droppable(again.content) &&
          shown({.calls = again.calls}) == shown({.calls = parts.calls}))
        return true;
    return false;
  }

  const AnswerParser::Options options_;
  AnswerParser parser_;
  std::string open_;  // what was read and has not become a part
};

TEST(AnswerParserForms, NothingIsLost) {
  RandomCalls texts;
  for (int i = 0; i < 10'000; ++i) {
    const std::string text = texts.next();
    for (const CallForm form : kForms)
      ASSERT_TRUE(Ledger(options_of(form)).check(text)) << text << "\n" << static_cast<int>(form);
  }
}

TEST(AnswerParserForms, TextWithoutOfferedNamesIsUnchanged) {
  RandomCalls texts;
  for (int i = 0; i < 10'000; ++i) {
    const std::string text = texts.next();
    for (const CallForm form : kForms) {
      expect_is_content(text, {.call_form = form, .tools = {"not in the texts"}});
      expect_is_content(text, {.call_form = form});
    }
  }
}

// A parser that reads or moves these texts again for each of their tags would take hours.
TEST(AnswerParserForms, TheTimeIsProportionalToTheText) {
  const std::vector<std::string> patterns = {"<",
                                             "[",
                                             "{",
                                             "`",
                                             "<function=f>",
                                             "<function=f>\n<parameter=a>",
                                             "<parameter=a>",
                                             "<parameter=a>1</parameter>",
                                             "<tool_call>\n<function=f></function>",
                                             "[TOOL_CALLS]",
                                             "[TOOL_CALLS]f",
                                             "[TOOL_CALLS]f{",
                                             "[TOOL_CALLS][",
                                             "[TOOL_CALLS][{\"name\"",
                                             "[f(",
                                             "[f(a=",
                                             "f(a=1), ",
                                             "[f(a=1)]",
                                             "{\"name\"",
                                             "{\"name\":",
                                             "{\"name\":{",
                                             ";",
                                             ", ",
                                             " ",
                                             "\\",
                                             "[ARGS]",
                                             "<|python_tag|>",
                                             "<|python_start|>[",
                                             "```json",
                                             "a=1, ",
                                             "'",
                                             "\"",
                                             "{\"name\": \"f\", \"parameters\": {}};",
                                             "</tool_call>",
                                             "</parameter>\n"};
  for (const char* beginning :
       {"", "<function=f><parameter=a>", "[f(a='", "[f(a=[", "[TOOL_CALLS][", "{\"name\": \"",
        "<function=f>", "[f(", "[TOOL_CALLS]f{\"a\": \""})
    for (const std::string& pattern : patterns) {
      std::string text = beginning;
      while (text.size() < 200'000) text += pattern;
      for (const CallForm form :
           {CallForm::kTags, CallForm::kJson, CallForm::kPythonic, CallForm::kMistral}) {
        AnswerParser parser(options_of(form));
        size_t num_bytes = 0;
        for (size_t at = 0; at < text.size(); at += 5)
          num_bytes += parser.add(std::string_view(text).substr(at, 5)).content.size();
        EXPECT_LE(num_bytes + parser.finish().content.size(), text.size());
      }
    }
}

TEST(AnswerParserForms, OnlyTheFirstCallIsDeliveredIfTheClientWantsNoMore) {
  for (const auto& [form, text] : {std::pair(CallForm::kXml,
                                             "<function=f></function>\n"
                                             "<function=g></function>"),
                                   {CallForm::kJson, R"({"name": "f", "parameters": {}}; )"
                                                     R"({"name": "g", "parameters": {}})"},
                                   {CallForm::kPythonic, "[f(), g()]"},
                                   {CallForm::kMistral, "[TOOL_CALLS]f{}[TOOL_CALLS]g{}"}}) {
    AnswerParser::Options options = options_of(form);
    EXPECT_EQ(parsed(text, options), "|f({})|g({})");
    options.parallel_calls = false;
    EXPECT_EQ(parsed(text, options), "|f({})");
  }
}

TEST(AnswerParserForms, HiddenTagsAreNeitherThoughtsNorContent) {
  AnswerParser::Options options = options_of(CallForm::kJson);
  options.splits_reasoning = true;
  options.hidden_tags = {"<think>", "</think>", "<|python_tag|>", "<|python_end|>"};
  EXPECT_EQ(parsed("<|python_tag|>print(1)", options), "print(1)");
  EXPECT_EQ(parsed("a<|python_end|> <|python_tag|><|python_tag|>b", options), "a b");
  EXPECT_EQ(parsed("<think>a <|python_tag|>b <</think>c</think><", options), "[a b <]c<");
  EXPECT_EQ(parsed("<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", options), "|f({})");
  EXPECT_EQ(parsed("<|python_tag|>{\"name\": \"h\", \"parameters\": {}}", options),
            "{\"name\": \"h\", \"parameters\": {}}");
  EXPECT_EQ(parsed("<|<|python_<|python_tag|>|python_tag|>", options), "<|<|python_|python_tag|>");
}

}  // namespace
}  // namespace nanovllm::server
