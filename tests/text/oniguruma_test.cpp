#include "nanovllm/text/pre_tokenizer/oniguruma.h"

#include <gmock/gmock.h>

#include "nanovllm/base/error.h"
#include "nanovllm/text/pre_tokenizer/regex.h"

// components_test.cpp compares what patterns match. These are what is refused.
namespace nanovllm {
namespace {

using ::testing::HasSubstr;

std::string pattern_error(const std::string& pattern) {
  try {
    Regex(pattern, "t.json");
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(), HasSubstr("t.json: "));
    return e.what();
  }
  return "no error";
}

TEST(Oniguruma, NamesWhatIsNotSupported) {
  for (const char* part : {R"(\G)",
                           R"(\K)",
                           R"(\X)",
                           R"(\y)",
                           R"(\g)",
                           "(*",
                           "(?s",
                           "(?P",
                           "(?~",
                           "(?(",
                           "(?{",
                           "(?W",
                           R"(\p{Nothing})",
                           R"(\p{InGreek})",
                           R"(\u12)",
                           R"(\x{110000})",
                           R"(\ud800)",
                           R"(\xe9)",
                           R"(\M)",
                           R"(\c)",
                           "a{2,1}",
                           "a{1000}",
                           "[a-\\d]",
                           "[b-a]",
                           "[[:nothing:]]",
                           "(?<1>a)"})
    EXPECT_THAT(pattern_error("b" + std::string(part)), HasSubstr("is not supported")) << part;
  // The text that a set stands for would depend on the case of its letters.
  for (const char* pattern : {R"((?i)[\p{Lu}])", "(?i)[[:lower:]]"})
    EXPECT_THAT(pattern_error(pattern), HasSubstr("is not supported")) << pattern;
  EXPECT_EQ(pattern_error(R"((?i)\p{Lu}[\p{L}])"), "no error");
}

TEST(Oniguruma, SaysWhatIsWrong) {
  EXPECT_EQ(pattern_error("(a"), "t.json: bad pattern '(a': no ) for the ( at byte 0");
  EXPECT_EQ(pattern_error("b[a"), "t.json: bad pattern 'b[a': no ] for the [ at byte 1");
  EXPECT_EQ(pattern_error("a)"), "t.json: ')' at byte 1 of the pattern 'a)' is not supported");
  EXPECT_EQ(pattern_error("a|*"), "t.json: '*' at byte 2 of the pattern 'a|*' is not supported");
  EXPECT_THAT(pattern_error("(?<=a+)b"), HasSubstr("bad pattern '(?<=a+)b': lookbehind"));
  for (const char* pattern :
       {"a\\",  "[a\\",    "[",        "[^",   "[[",     "[[:",  "[[:alpha", "(?",   "(?<",
        "(?<a", "(?i",     "(?#",      "\\p{", "\\p{L",  "\\x{", "\\x{41",   "\\k<", "\\k",
        "[a-",  "\\xe4\\", "\\xe4\\x", "[&&",  "a{2,1}", "\\9",  "[[a]"})
    EXPECT_NE(pattern_error(pattern), "no error") << pattern;
}

TEST(Oniguruma, EveryPartOfAPatternEndsInAnErrorOrAPattern) {
  const std::string pattern =
      R"((?i:'s|a)(?<n>b)\k<n>[^\r\n\p{L}&&[^\x{41}-\u0043[:digit:]]]{1,3}?(?x: a # b
 )\xe4\xbd\xa0(?<!\S)\bc*+(?#d)\1)";
  for (size_t begin = 0; begin < pattern.size(); ++begin)
    for (size_t len = 1; len <= pattern.size() - begin; ++len)
      pattern_error(pattern.substr(begin, len));
}

TEST(Oniguruma, SetsStayClassesOfPcreWherePossible) {
  EXPECT_EQ(to_pcre(R"([^\s\p{Lu}a-c])", "t"), R"([^\t-\r\x{85}\p{Z}\p{Lu}a-c])");
  EXPECT_EQ(to_pcre(R"([a[bc]])", "t"), "[abc]");
  EXPECT_EQ(to_pcre(R"(\p{Han}+)", "t"), R"([\p{sc:Han}]+)");
  EXPECT_EQ(to_pcre(R"([a-z&&[^b]])", "t"), "(?:(?=[^b])[a-z])");
}

}  // namespace
}  // namespace nanovllm
