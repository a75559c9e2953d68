#include "nanovllm/text/tokenizer/added_tokens.h"

#include <gmock/gmock.h>

#include "nanovllm/base/error.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

using ::testing::ElementsAre;

AddedTokenFinder finder(const std::vector<std::string>& texts) {
  std::vector<AddedToken> tokens;
  for (size_t i = 0; i < texts.size(); ++i)
    tokens.push_back({.id = static_cast<int32_t>(i), .content = texts[i]});
  return AddedTokenFinder(tokens);
}

/// "[0 abc]" for a token, "abc" for text.
std::vector<std::string> parts(const AddedTokenFinder& finder, const std::string& text) {
  std::vector<std::string> out;
  for (const auto& part : finder.split(text))
    out.push_back(part.id < 0 ? std::string(part.text)
                              : "[" + std::to_string(part.id) + " " + std::string(part.text) + "]");
  return out;
}

/// Searches the leftmost, and of those the longest, token at one position after the other.
std::vector<std::string> slow_parts(const std::vector<std::string>& texts, std::string text) {
  std::vector<std::string> out;
  std::string between;
  while (!text.empty()) {
    size_t longest = texts.size();
    for (size_t i = 0; i < texts.size(); ++i)
      if (!texts[i].empty() && text.starts_with(texts[i]) &&
          (longest == texts.size() || texts[i].size() > texts[longest].size()))
        longest = i;
    if (longest == texts.size()) {
      between += text[0];
      text.erase(0, 1);
      continue;
    }
    if (!between.empty()) out.push_back(std::exchange(between, {}));
    out.push_back("[" + std::to_string(longest) + " " + texts[longest] + "]");
    text.erase(0, texts[longest].size());
  }
  if (!between.empty()) out.push_back(between);
  return out;
}

TEST(AddedTokens, FindsTheLeftmostAndOfThoseTheLongest) {
  EXPECT_THAT(parts(finder({"ab", "abcd", "bc", "d"}), "xabcabcd"),
              ElementsAre("x", "[0 ab]", "c", "[1 abcd]"));
  EXPECT_THAT(parts(finder({"abcx", "bc"}), "abcd"), ElementsAre("a", "[1 bc]", "d"));
  EXPECT_THAT(parts(finder({"a", "a", ""}), "ba"), ElementsAre("b", "[0 a]"));
  EXPECT_THAT(parts(finder({}), "ba"), ElementsAre("ba"));
  EXPECT_TRUE(finder({"a"}).split("").empty());
}

TEST(AddedTokens, AgreeWithASearchAtEachPosition) {
  Random random(1);
  const auto word = [&](size_t max_len) {
    std::string s;
    for (size_t n = random.below(max_len + 1); n > 0; --n) s += "ab\xFF\x80"[random.below(4)];
    return s;
  };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> texts(random.below(8));
    for (std::string& text : texts) text = word(6);
    const std::string text = word(30);
    ASSERT_EQ(parts(finder(texts), text), slow_parts(texts, text)) << text;
  }
}

// Searching at each position separately would take hours for each of these.
TEST(AddedTokens, LongTokensThatAlmostMatchEverywhere) {
  const std::string as(1 << 19, 'a');
  EXPECT_THAT(parts(finder({as + "b", "ab"}), as + as), ElementsAre(as + as));
  const auto found = finder({as + "b", "a"}).split(as + as);
  EXPECT_EQ(found.size(), 1 << 20);
  EXPECT_EQ(found.back().id, 1);
}

TEST(AddedTokens, WhiteSpaceThatManyTokensInclude) {
  const std::string spaces(1 << 20, ' ');
  const AddedTokenFinder both({{.id = 0, .content = " ", .lstrip = true, .rstrip = true}});
  const std::string text = "a" + spaces + "a";
  const auto found = both.split(text);
  ASSERT_GT(found.size(), 2u);
  EXPECT_EQ(found.front().text, "a");
  EXPECT_EQ(found[1].text, spaces);
  EXPECT_EQ(found.back().text, "a");
}

TEST(AddedTokens, TheirBytesAreBounded) {
  EXPECT_THROW(finder({std::string(AddedTokenFinder::kMaxBytes, 'a'), "b"}), UserError);
}

}  // namespace
}  // namespace nanovllm
