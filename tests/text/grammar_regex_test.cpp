#include "nanovllm/text/grammar/regex/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/grammar/regex/character_classes.h"
#include "nanovllm/text/unicode.h"
#include "tests/text/grammar_language.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm::grammar {
namespace {

const std::string kRegexRows = std::string(NANOVLLM_SOURCE_DIR) + "/../shared/goldens/structured";

Language regex_language(const std::string& pattern, const RegexOptions& options = {}) {
  return Language([&](Expressions& e) { return parse_regex(e, pattern, options, "t"); });
}

std::string regex_error(const std::string& pattern) {
  return refusal([&](Expressions& e) { return parse_regex(e, pattern, {}, "body.regex"); });
}

std::string times(const std::string& part, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += part;
  return out;
}

std::string in_json(std::string_view text) {
  const std::string quoted = Json(std::string(text)).dump();
  return quoted.substr(1, quoted.size() - 2);
}

/// Whether PCRE2 finds a match in a text, or takes the text as a whole.
class Pcre {
 public:
  Pcre(const std::string& pattern, bool anywhere) {
    const std::string whole = anywhere ? pattern : "\\A(?:" + pattern + ")\\z";
    int error = 0;
    size_t at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                              PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_ALT_CIRCUMFLEX, &error, &at,
                              nullptr));
    EXPECT_NE(code_, nullptr) << pattern;
    data_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }
  bool matches(const std::string& text) {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                       data_.get(), nullptr) > 0;
  }

 private:
  std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code_{nullptr, pcre2_code_free};
  std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data_{nullptr,
                                                                       pcre2_match_data_free};
};

/// All texts of at most this many of the letters.
std::vector<std::string> all_texts(const std::vector<std::string>& letters, size_t max_len) {
  std::vector<std::string> texts{""};
  for (size_t begin = 0, len = 0; len < max_len; ++len) {
    const size_t end = texts.size();
    for (; begin < end; ++begin)
      for (const std::string& letter : letters) texts.push_back(texts[begin] + letter);
  }
  return texts;
}

/// A random pattern over a, b, A, é and the line feed.
std::string random_pattern(Random& random, int depth, bool with_anchors) {
  const auto pick = [&](const std::vector<std::string>& from) {
    return from[random.below(from.size())];
  };
  if (depth == 0 || random.below(4) == 0) {
    if (with_anchors && random.below(4) == 0) return pick({"^", "$", "^", "$", "\\A", "\\z"});
    return pick({"a", "b", "A", "é", "\\n", ".", "[ab]", "[^a]", "[^\\n]", "\\w", "\\s", "\\D", "",
                 "ab", "(?i:a)", "(?s:.)", "[é-ü]", "\\x61", "(?i:[^é])"});
  }
  const auto inner = [&] { return random_pattern(random, depth - 1, with_anchors); };
  switch (random.below(6)) {
    case 0:
      return inner() + "|" + inner();
    case 1:
    case 2:
      return inner() + inner();
    case 3:
      return "(?:" + inner() + ")";
    case 4:
      if (with_anchors) return "(" + inner() + ")?";
      return "(" + inner() + ")" +
             pick({"*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?", "{0}"});
    default:
      return "(?:" + inner() + "|" + inner() + ")" + inner();
  }
}

TEST(GrammarRegex, AgreesWithPcreOnRandomPatterns) {
  const std::vector<std::string> texts = all_texts({"a", "b", "A", "\u00e9", "\n"}, 4);
  Random random(7);
  for (int i = 0; i < 400; ++i) {
    const bool with_anchors = i % 2 == 1, anywhere = i % 4 >= 2;
    std::string pattern = random_pattern(random, 4, with_anchors);
    if (i % 3 == 0) pattern = "(?m)" + pattern;
    Pcre pcre(pattern, anywhere);
    Language plain = regex_language(pattern, {Coding::kUtf8, anywhere});
    Language json = regex_language(pattern, {Coding::kJsonString, anywhere});
    for (const std::string& text : texts) {
      const bool expected = pcre.matches(text);
      ASSERT_EQ(plain.has(text), expected)
          << pattern << " anywhere: " << anywhere << " " << Json(text).dump();
      ASSERT_EQ(json.has(in_json(text)), expected) << pattern << " " << Json(text).dump();
    }
  }
}

TEST(GrammarRegex, AgreesWithTheRowsOfOtherEngines) {
  const std::string path = kRegexRows + "/regex.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  for (const Json& row : read_json_lines(path)) {
    const auto pattern = row["spec"].get<std::string>();
    const bool is_refused = row["rows"].front().size() == 1;
    EXPECT_EQ(regex_error(pattern) != "", is_refused) << pattern;
    if (is_refused) continue;
    Language language = regex_language(pattern);
    for (const Json& text : row["rows"])
      EXPECT_EQ(language.has(text[0].get<std::string>()), text[1].get<bool>())
          << pattern << " " << text.dump();
  }
}

TEST(GrammarRegex, AnchorsMayStandWhereTheyCanMatch) {
  const auto check = [](const std::string& pattern, bool anywhere,
                        const std::vector<std::string>& members,
                        const std::vector<std::string>& others) {
    Language language = regex_language(pattern, {Coding::kUtf8, anywhere});
    for (const std::string& text : members) EXPECT_TRUE(language.has(text)) << pattern << text;
    for (const std::string& text : others) EXPECT_FALSE(language.has(text)) << pattern << text;
  };
  check("(^$)|(^ab$)", true, {"", "ab"}, {"a", "xab", "abx", "\n"});
  check("^a|b$", true, {"a", "ax", "xb", "b"}, {"xa", "bx", ""});
  check("(?:^x)?y", true, {"y", "xy", "ay", "y\n"}, {"x"});
  check("(?:^x)?y", false, {"y", "xy"}, {"ay", "yy"});
  check("^^a$$", false, {"a"}, {"aa"});
  check("a$\\n?", true, {"a", "ba"}, {"a\n"});
  check("(?m)^a$", true, {"a", "b\na\nc", "a\n"}, {"ba", "ab"});
  check("(?m)a$\\n^b", false, {"a\nb"}, {"ab"});
  check("\\Aa\\z|(?m:^)b", true, {"a", "xx\nb"}, {"xa", "xb"});
  check("[a-z]+", true, {"a", "1a\n2"}, {"", "12"});
  check("a$b|c", false, {"c"}, {"ab", "a"});
}

TEST(GrammarRegex, ClassesAgreeWithPcreForEveryCharacter) {
  for (const std::string pattern : {"\\d",
                                    "\\W",
                                    "[^\\s\\w]",
                                    "\\p{Lu}",
                                    "\\P{L}",
                                    "[\\p{Greek}0-9]",
                                    "\\p{Script=Han}",
                                    "(?i)k",
                                    "(?i)[^a-z]",
                                    "(?i)\\W",
                                    "(?i)\\u{3c3}",
                                    "[[:punct:]]",
                                    "[[:^alpha:]x]",
                                    ".",
                                    "(?s).",
                                    "[\\u0000-\\u{10ffff}]",
                                    "(?i)[\u00df\u0130s]",
                                    "\\p{gc=Nd}",
                                    "\\pN",
                                    "[\\uD83D\\uDE00-\\U0001F64F]"}) {
    // PCRE2 has other spellings of some escapes, and its \s lacks the wide spaces of ECMA.
    std::string theirs = pattern;
    const auto replace = [&](const std::string& from, const std::string& to) {
      for (size_t at = 0; (at = theirs.find(from, at)) != std::string::npos; at += to.size())
        theirs.replace(at, from.size(), to);
    };
    replace("\\u{", "\\x{");
    replace("\\u0000", "\\x{0}");
    replace("\\uD83D\\uDE00-\\U0001F64F", "\\x{1F600}-\\x{1F64F}");
    replace("\\s",
            "\\s\\xA0\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}\\x{"
            "FEFF}");
    replace("(?i)\\W", "(?i)[^\\w\\x{17F}\\x{212A}]");
    replace("gc=", "");
    replace("Greek", "sc:Greek");
    Pcre pcre(theirs, /*anywhere=*/false);
    Language language = regex_language(pattern);
    int num_wrong = 0;
    const CodePoints all = CodePoints::all();
    for (const auto& [first, last] : all.ranges())
      for (char32_t c = first; c <= last; c += c < 0x30000 || c % 0x10000 > 0xFFF0 ? 1 : 13)
        if (language.has(to_utf8(c)) != pcre.matches(to_utf8(c)) && ++num_wrong < 5)
          ADD_FAILURE() << pattern << Json(to_utf8(c)).dump() << " " << std::hex << uint32_t{c};
  }
}

TEST(GrammarRegex, TakesOnlyWellFormedUtf8) {
  Language any = regex_language("(?s).*");
  Random random(3);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes;
    for (size_t n = random.below(5); n > 0; --n)
      bytes +=
          static_cast<char>(random.below(3) == 0 ? random.below(256) : 0x80 + random.below(0x78));
    EXPECT_EQ(any.has(bytes), is_utf8(bytes));
  }
  for (const std::string bytes :
       {"\xC0\x80", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80"})
    EXPECT_FALSE(any.has(bytes));
}

TEST(GrammarRegex, EscapesInJsonAreTheShortestOnes) {
  Language any = regex_language("(?s).*", {Coding::kJsonString, false});
  for (const std::string text : {"a\\n", "\\\"", "\\\\", "\\b\\f\\r\\t", "\\u0001", "\\u001f",
                                 "\\u001F", "/", "\x7F", "\u00e9"})
    EXPECT_TRUE(any.has(text)) << text;
  for (const std::string text :
       {"\n", "\"", "\\", "\\u000a", "\\u0009", "\\u0041", "\\/", "\\u002", "\\a", "\\u0020"})
    EXPECT_FALSE(any.has(text)) << text;
  Language one =
      Language([](Expressions& e) { return written(e, "a\"\u00e9\n\x0B", Coding::kJsonString); });
  EXPECT_TRUE(one.has("a\\\"\u00e9\\n\\u000b"));
  EXPECT_TRUE(one.has("a\\\"\u00e9\\n\\u000B"));
  EXPECT_FALSE(one.has("a\\\"\u00e9\\n\\u001b"));
}

TEST(GrammarRegex, LiteralsThatPeopleDoNotEscape) {
  for (const auto& [pattern, text] :
       std::vector<std::pair<std::string, std::string>>{{"{a}", "{a}"},
                                                        {"a]", "a]"},
                                                        {"a{,}", "a{,}"},
                                                        {"x{a", "x{a"},
                                                        {"\\-\\/\\_\\@\\ \\%", "-/_@ %"},
                                                        {"[\\w-.]+", "a-."},
                                                        {"[a-]+", "a-a"},
                                                        {"[-a]+", "-a"},
                                                        {"[[]", "["},
                                                        {"[.*+^]+", ".*+^"},
                                                        {"a{,2}", "aa"},
                                                        {"\\cA\\0", std::string("\x01\0", 2)},
                                                        {"[\\b]", "\b"},
                                                        {"\\x{41}\\u{1F600}", "A\U0001F600"},
                                                        {"(?<year>1)(?P<b_2>2)", "12"},
                                                        {"(?i:a)B", "AB"},
                                                        {"a(?i)b|c", "C"},
                                                        {"(?i-s:A)", "a"},
                                                        {"\\\\", "\\"}})
    EXPECT_TRUE(regex_language(pattern).has(text)) << pattern;
  EXPECT_TRUE(regex_language("(?i)\\p{Lu}+").has("aB\u00e9"));
  EXPECT_FALSE(regex_language("(?i)\\P{Lu}").has("a"));
  EXPECT_FALSE(regex_language("(?i:a)B").has("ab"));
  EXPECT_FALSE(regex_language("(a(?i)b)c").has("aBC"));
}

TEST(GrammarRegex, RefusesByName) {
  for (const auto& [pattern, message] : std::vector<std::pair<std::string, std::string>>{
           {"a(?=b)", "look-ahead is not supported (after character 3)"},
           {"(?!a)", "look-ahead"},
           {"(?<=a)", "look-behind"},
           {"(?<!a)", "look-behind"},
           {"(a)\\1", "the back-reference \\1"},
           {"\\k<a>", "back-reference"},
           {"(?P=a)", "back-reference"},
           {"a\\b", "the word border \\b"},
           {"\\B", "word border"},
           {"(?>a)", "atomic"},
           {"a*+", "possessive"},
           {"a{2}+", "possessive"},
           {"(?R)", "recursion"},
           {"(?1)", "recursion"},
           {"(?(1)a)", "conditional"},
           {"(?x)a", "the flag x"},
           {times("(?:^|a|bc)", 50), "optional ^ or $"},
           {"(^a)*", "a repetition of ^ or $"},
           {"(a$){2}", "a repetition of ^ or $"},
           {"[a&&b]", "intersection"},
           {"\\q", "the escape \\q"},
           {"\\Qa\\E", "the escape \\Q"},
           {"\\p{Foo}", "\\p{Foo}"},
           {"\\p{^L}", "\\p{^L}"},
           {"\\p", "property"},
           {"[[:foo:]]", "[:foo:]"},
           {"[]a]", "different things"},
           {"[^]", "different things"},
           {"(", "without its )"},
           {")", "without its ("},
           {"[a", "without its ]"},
           {"*a", "nothing to repeat"},
           {"a|*", "nothing to repeat"},
           {"{2}", "nothing to repeat"},
           {"a**", "a quantifier after"},
           {"a{2}{3}", "a quantifier after"},
           {"[z-a]", "out of order"},
           {"[a-\\d]", "out of order"},
           {"a{3,2}", "out of order"},
           {"a{10000001}", "10000000 times"},
           {"a{99999999999999999999}", "10000000 times"},
           {"a\\", "at the end"},
           {"\\x4", "not the number of a character"},
           {"\\u{110000}", "not the number"},
           {"\\u{}", "not the number"},
           {"\\uD800", "surrogate"},
           {"\\uDC00\\uD800", "surrogate"},
           {"[\\u{D800}]", "surrogate"},
           {"\\p{L", "without its }"},
           {"(?<a", "without its >"},
           {"(?<1a>b)", "not a name"},
           {"(?", "kind of group"},
           {"\\07", "the escape \\0"},
           {"\xFF", "UTF-8"},
           {std::string(70000, 'a'), "at most 65536"}}) {
    EXPECT_THAT(regex_error(pattern), ::testing::HasSubstr(message));
    EXPECT_THAT(regex_error(pattern), ::testing::StartsWith("body.regex"));
  }
}

TEST(GrammarRegex, HostilePatternsEndQuickly) {
  for (const std::string& pattern :
       {times("(", 200) + "a" + times(")", 200), times("(", 30000),
        times("(?:a|", 200) + times(")*", 200), std::string("((a{1000}){1000}){1000}"),
        times("a|", 32000), times("{", 65000), times("[", 65000), times("\\p{L}", 13000),
        "[" + times("\\P{L}\\d", 8000) + "]", "(?i)" + times("[^k\\p{Lu}]", 6500),
        times("(?:^|a)", 9000), "(?m)" + times("(?:^|a)", 9000), times("a?", 32000),
        times("(?i)", 16000), "(?m)" + times("^$", 32000),
        times("\\p{Greek}\\p{greek}\\p{GREEK}", 2400)})
    regex_error(pattern);

  Language deep = regex_language("((a{1000}){1000}){10}");
  EXPECT_TRUE(deep.begins_with(std::string(100000, 'a')));
  Language exact = regex_language("((a{10}){10}){10}");
  EXPECT_TRUE(exact.has(std::string(1000, 'a')));
  EXPECT_FALSE(exact.has(std::string(999, 'a')));
  EXPECT_FALSE(exact.has(std::string(1001, 'a')));
}

}  // namespace
}  // namespace nanovllm::grammar
