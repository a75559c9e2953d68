#include "nanovllm/text/pre_tokenizer/regex.h"

#include <gmock/gmock.h>

#include "nanovllm/base/error.h"
#include "nanovllm/text/pre_tokenizer/words.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

using ::testing::HasSubstr;

// The patterns of Qwen 2, GPT-2, GPT-4o and DeepSeek V3 (which has three, applied one after the
// other).
const std::string kQwen =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kPublished[] = {
    kQwen,
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"(\p{N}{1,3})",
    "[一-龥぀-ゟ゠-ヿ]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

size_t count(const Regex& regex, std::string_view text) {
  size_t matches = 0;
  regex.find_all(text, [&](size_t, size_t) { ++matches; });
  return matches;
}

std::string search_error(const std::string& pattern, const std::string& text) {
  try {
    count(Regex(pattern, "t.json"), text);
  } catch (const UserError& e) {
    return e.what();
  }
  return "no error";
}

std::string repeated(std::string_view text, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += text;
  return out;
}

TEST(Regex, PublishedPatternsTakeAnyLongText) {
  for (const std::string& pattern : kPublished) {
    const Regex regex(pattern, "t");
    for (const char* piece : {"a",
                              "A",
                              "1",
                              " ",
                              "\n",
                              "\r\n",
                              "<",
                              "'",
                              "你",
                              "か",
                              "\u0301",
                              "\u00A0",
                              "aA",
                              " a",
                              " \n",
                              "\n ",
                              "  \n\n",
                              "'s",
                              "a'",
                              "A'LL",
                              "! ",
                              "<|",
                              "so it is, 你好! 123\r\n"})
      for (const char* end : {"", "a", "\n"})
        EXPECT_NO_THROW(count(regex, repeated(piece, 1 << 18) + end)) << pattern << piece << end;
  }
}

// Compares matches that are near, and matches that are not, with the hand-written matcher.
TEST(Regex, FindsTheSameNearAndFar) {
  const Regex regex(kQwen, "t");
  const std::string pieces[] = {"a",  "é", "你", "1", " ",      "\n",
                                "\r", "'", "s",  "!", "\u3000", "\t"};
  Random random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t runs = 1 + random.below(6); runs > 0; --runs) {
      const std::string& piece = pieces[random.below(std::size(pieces))];
      const size_t bytes = random.below(3) == 0 ? random.below(400) : 1 + random.below(8);
      text += repeated(piece, bytes);
    }
    std::vector<size_t> expected, ends;
    regex.find_all(text, [&](size_t, size_t end) { ends.push_back(end); });
    const char* const end = text.data() + text.size();
    for (const char* p = text.data(); p < end;) {
      p = end_of_word(p, end, 1);
      expected.push_back(static_cast<size_t>(p - text.data()));
    }
    ASSERT_EQ(ends, expected) << text;
  }
}

TEST(Regex, LooksBehindAndAheadOfANearMatch) {
  const auto matches = [](const char* pattern, const std::string& text) {
    return count(Regex(pattern, "t"), text);
  };
  for (const size_t n : {1, 126, 127, 128, 129, 130, 255, 256, 1000}) {
    const std::string as(n, 'a');
    EXPECT_EQ(matches("(?<=a)b", as + "b"), 1) << n;
    if (n <= 130) {
      EXPECT_EQ(matches("a(?=a*b)", as + "b"), n) << n;
    }
    EXPECT_EQ(matches("a+$", as + "\n" + as), 2) << n;
    EXPECT_EQ(matches("^a+", as + "\n" + as), 2) << n;
    EXPECT_EQ(matches("a*?b", as + "b" + as), 1) << n;
    EXPECT_EQ(matches("x*", as), n + 1) << n;
    EXPECT_EQ(matches("(?:a|b)*c", as + "c" + as), 1) << n;
    EXPECT_EQ(matches("é", repeated("é", 2 * n)), n) << n;
  }
}

// Without limits, each of these would take quadratic time or worse, most of them many minutes.
TEST(Regex, PatternsThatTakeTooLongEndInAnErrorThatNamesThem) {
  const std::string as(1 << 18, 'a');
  for (const char* pattern :
       {"a*a*[bc]", "(?<=a)a*[bc]", "a*[bc]", "a*?[bc]", "(?:a|a)*[bc]", "(?:a+)+[bc]",
        "(?:a|aa)+[bc]", "a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?[bc]", "a(?=a*[bc])",
        "(?:(?:(?:a{1,9}){1,9}){1,9}){1,9}[bc]", "(?:a|b|ab)*(?:a|b|ab)*[cd]", "a{999}[bc]",
        "(?:a{0,900}){0,9}[bc]", "(?>a*)[bc]", "(?:(?=a*[bc])x|a)"})
    EXPECT_THAT(search_error(pattern, as),
                testing::AllOf(HasSubstr("t.json: the pattern '"), HasSubstr(pattern),
                               HasSubstr("moves on 262144 bytes")));
  // Many runs, each too short for its quadratic time to matter.
  EXPECT_THAT(search_error("a*a*a*a*[bc]", repeated(std::string(300, 'a') + "d", 1 << 18)),
              HasSubstr("moves"));
  for (const char* pattern : {"a*a*[bc]", "a*a*a*a*a*a*[bc]", "(?:a|a)(?:a|a)*(?:a|aa)*[bc]"})
    search_error(pattern, repeated(std::string(100, 'a') + "d", 1 << 18));  // either way
}

TEST(Regex, RefusesWhatIsLongInOneStep) {
  EXPECT_EQ(search_error("a{999}", "a"), "no error");
  EXPECT_EQ(search_error(R"(\x{1F600}|\p{L}{1,3}|[{1000}])", "a"), "no error");
  for (const char* pattern : {"a{1000}", "a{1,1000}", "a{1000,}", "(?:ab){65535}"})
    EXPECT_THAT(search_error(pattern, "a"), HasSubstr("is not supported")) << pattern;
  EXPECT_THAT(search_error(std::string(5000, 'a'), "a"), HasSubstr("5000 bytes"));
}

}  // namespace
}  // namespace nanovllm
