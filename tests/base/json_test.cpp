#include "nanovllm/base/json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/base/error.h"

namespace nanovllm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void expect_refused(const std::string& text, const std::string& what) {
  EXPECT_THAT([&] { parse_json(text, "here"); }, ThrowsMessage<UserError>(HasSubstr(what))) << text;
}

TEST(Json, KeepsTheOrderOfKeysAndTheLastOfEqualOnes) {
  const Json json = parse_json(R"({"b": 1, "a": [2, "x:{[\"]}"], "b": 3})", "here");
  EXPECT_EQ(json.dump(), R"({"b":3,"a":[2,"x:{[\"]}"]})");
}

TEST(Json, InvalidJsonIsRefusedWithItsPosition) {
  for (const char* text :
       {"", "{", "[1,]", "{\"a\" 1}", "nul", "\"\\ud800\"", "\"\x80\"", "1 2", "]"})
    expect_refused(text, "here: not valid JSON");
  expect_refused("[1e400]", "too large for a double");
  expect_refused("[1,]", "here: not valid JSON: parse error at column 4");
  expect_refused("[1,\n]", "here: not valid JSON: parse error at line 2, column 1");
}

TEST(Json, TextThatIsNotUtf8IsRefusedWithTheByte) {
  for (const char* text : {"{\"k\": \"\xff\"}", "[1] \xff", "\"ab\xed\xa0\x80\""}) {
    const size_t byte = std::string_view(text).find_first_of("\xff\xed") + 1;
    const std::string error = fmt::format("here: not valid JSON: byte {} (0x", byte);
    EXPECT_THAT([&] { parse_json(text, "here"); }, ThrowsMessage<UserError>(HasSubstr(error)));
    EXPECT_THAT([&] { parse_sorted_json(text, "here", 100); },
                ThrowsMessage<UserError>(HasSubstr(error)));
  }
}

TEST(Json, EndsWithItsTextAndNotAtANul) {
  EXPECT_EQ(parse_json("[1] \t\r\n", "here"), Json({1}));
  const std::string nul(1, '\0');
  for (const std::string& text : {"[1]" + nul, "[1]" + nul + "]", "[1" + nul + "]", nul,
                                  "\"a" + nul + "b\"", "1" + nul + "2"})
    expect_refused(text, fmt::format("here: not valid JSON: a NUL at byte {}", text.find('\0')));
  for (const char* text : {"[1]]", "[1] x", "[1],", "{}{}"})
    expect_refused(text, "here: not valid JSON: parse error");
  EXPECT_EQ(parse_json(R"("a\u0000b")", "here").get<std::string>(), "a" + nul + "b");
}

TEST(Json, DepthAndKeysAreBounded) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_NO_THROW(parse_json(nested(200), "here"));
  expect_refused(nested(201), "deeper than 200");
  expect_refused(std::string(100'000, '['), "deeper than 200");
  std::string wide = "{";
  for (int i = 0; i < 20'001; ++i) wide += "\"" + std::to_string(i) + "\":0,";
  wide.back() = '}';
  expect_refused(wide, "more than 20000 keys");
  std::string list = "[";
  for (int i = 0; i < 40'000; ++i) list += "{\"a\":0},";
  list.back() = ']';
  EXPECT_EQ(parse_json(list, "here").size(), 40'000u);
  // Each object alone is allowed, but parsing a hundred of them would take 20 s.
  wide = "{";
  for (int i = 0; i < 20'000; ++i) wide += "\"" + std::to_string(i) + "\":0,";
  wide.back() = '}';
  EXPECT_EQ(parse_json(wide, "here").size(), 20'000u);
  std::string objects = "[";
  for (int i = 0; i < 100; ++i) objects += wide + ",";
  objects.back() = ']';
  expect_refused(objects, "many large ones");
}

// A value takes far more memory than its text.
TEST(Json, TheMemoryOfValuesIsBounded) {
  constexpr size_t kMost = size_t{1} << 20;
  const auto list_of = [](std::string_view item, size_t count) {
    std::string text = "[";
    for (size_t i = 0; i < count; ++i) (text += i == 0 ? "" : ",") += item;
    return text + "]";
  };
  for (const std::string_view item : {"1", "{}", "[]", R"("")", R"({"a":1})"}) {
    EXPECT_NO_THROW(parse_json(list_of(item, 1000), "here", kMost)) << item;
    EXPECT_THAT([&] { parse_json(list_of(item, 50'000), "here", kMost); },
                ThrowsMessage<UserError>(HasSubstr("more than 1 MiB of memory")))
        << item;
  }
  EXPECT_NO_THROW(parse_json('"' + std::string(2 * kMost, 'x') + '"', "here", kMost));
}

}  // namespace
}  // namespace nanovllm
