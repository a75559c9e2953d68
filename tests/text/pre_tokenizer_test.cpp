#include "nanovllm/text/pre_tokenizer/pre_tokenizer.h"

#include <gmock/gmock.h>

#include "nanovllm/base/error.h"
#include "nanovllm/text/pre_tokenizer/regex.h"
#include "nanovllm/text/pre_tokenizer/words.h"
#include "nanovllm/text/tokenizer_json.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

using ::testing::ElementsAre;
using Pieces = std::vector<std::string>;

Pieces split(const std::string& json, const std::string& text) {
  const std::string file = R"({"pre_tokenizer": )" + json + "}";
  Pieces pieces;
  PreTokenizer(read_tokenizer_json(file, "t")).split(text, true, [&](std::string_view piece) {
    pieces.emplace_back(piece);
  });
  return pieces;
}

std::string split_json(const std::string& behavior, bool invert) {
  return R"({"type": "Split", "pattern": {"Regex": "[0-9]"}, "behavior": ")" + behavior +
         R"(", "invert": )" + (invert ? "true}" : "false}");
}

// The results are those of the Python package tokenizers 0.23.
TEST(PreTokenizer, SplitBehaviors) {
  const std::string text = "1ab23c";
  EXPECT_THAT(split(split_json("Isolated", false), text), ElementsAre("1", "ab", "2", "3", "c"));
  EXPECT_THAT(split(split_json("Removed", false), text), ElementsAre("ab", "c"));
  EXPECT_THAT(split(split_json("Removed", true), text), ElementsAre("1", "2", "3"));
  EXPECT_THAT(split(split_json("MergedWithPrevious", false), text),
              ElementsAre("1", "ab2", "3", "c"));
  EXPECT_THAT(split(split_json("MergedWithNext", false), text), ElementsAre("1ab", "2", "3c"));
  EXPECT_THAT(split(split_json("Contiguous", false), text), ElementsAre("1", "ab", "23", "c"));
}

TEST(PreTokenizer, MetaspaceSchemes) {
  const auto metaspace = [](const char* scheme, const char* more) {
    return std::string(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": ")") +
           scheme + "\"" + more + "}";
  };
  EXPECT_THAT(split(metaspace("always", ""), "a b  c"), ElementsAre("▁a", "▁b", "▁", "▁c"));
  EXPECT_THAT(split(metaspace("never", R"(, "split": false)"), "a b"), ElementsAre("a▁b"));
  EXPECT_THAT(split(metaspace("first", R"(, "split": false)"), " a b"), ElementsAre("▁a▁b"));
}

TEST(PreTokenizer, WhiteSpaceIsUnicodesNotPcres) {
  // Since Unicode 6.3, U+180E is not white space; U+0085 is.
  const std::string json =
      R"({"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Removed"})";
  EXPECT_THAT(split(json, "a\u180Eb\u0085c\u3000d"), ElementsAre("a\u180Eb", "c", "d"));
}

TEST(Words, OtherPatternsAreNotTheirs) {
  const std::string before = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})";
  const std::string after = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(word_pattern_digits(before + after), 1);
  EXPECT_EQ(word_pattern_digits(before + "{1,3}" + after), 3);
  for (const std::string& other :
       {before, before + "{1,2}" + after, before + "{1,3}", before + after + "|x", after})
    EXPECT_EQ(word_pattern_digits(other), 0) << other;
}

// Compares the hand-written matcher with the same pattern in PCRE2, for the characters of PCRE2's
// Unicode version.
TEST(Words, AgreeWithTheirPattern) {
  const Regex known(R"(\P{Cn})", "t");
  std::vector<std::string> alphabet = {
      "'",      "'",      "s",      "S",      "\u017F", "t",          "re",     "VE",
      "ll",     "d",      "m",      " ",      " ",      "  ",         "\t",     "\n",
      "\r",     "\r\n",   "\u00A0", "\u0085", "\u3000", "\u2028",     "\u180E", "1",
      "22",     "\u0663", "\u00BD", "\u216B", "a",      "Z",          "\u00E9", "\u4F60",
      "\u0301", "_",      "-",      "...",    "!",      "\U0001F600", "\u200D"};
  for (char32_t c = 0x80; c < 0x40000; c += 7) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    if (c >= 0x10000) text += static_cast<char>(0xF0 | c >> 18);
    if (c >= 0x10000 || c >= 0x800)
      text += static_cast<char>(c >= 0x10000 ? 0x80 | (c >> 12 & 0x3F) : 0xE0 | c >> 12);
    text += static_cast<char>(c >= 0x800 ? 0x80 | (c >> 6 & 0x3F) : 0xC0 | c >> 6);
    text += static_cast<char>(0x80 | (c & 0x3F));
    bool is_known = false;
    known.find_all(text, [&](size_t, size_t) { is_known = true; });
    if (is_known) alphabet.push_back(text);
  }
  for (const int digits : {1, 3}) {
    const std::string number = digits == 1 ? R"(\p{N})" : R"(\p{N}{1,3})";
    const std::string pattern = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" +
                                number + R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
    ASSERT_EQ(word_pattern_digits(pattern), digits);
    const Regex regex(pattern, "t");
    Random random(static_cast<uint64_t>(digits));
    for (int round = 0; round < 50'000; ++round) {
      std::string text;
      for (size_t n = 1 + random.below(12); n > 0; --n)
        text += alphabet[random.below(random.below(4) == 0 ? alphabet.size() : 39)];
      std::vector<size_t> expected, ends;
      regex.find_all(text, [&](size_t, size_t end) { expected.push_back(end); });
      const char* const end = text.data() + text.size();
      for (const char* p = text.data(); p < end;) {
        p = end_of_word(p, end, digits);
        ends.push_back(static_cast<size_t>(p - text.data()));
      }
      ASSERT_EQ(ends, expected) << text;
    }
  }
}

}  // namespace
}  // namespace nanovllm
