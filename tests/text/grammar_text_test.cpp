#include "nanovllm/text/grammar/syntax/grammar_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "nanovllm/text/grammar/schema/json_schema.h"
#include "tests/text/grammar_language.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm::grammar {

namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Texts = std::vector<std::string>;

const std::string kGoldens = std::string(NANOVLLM_SOURCE_DIR) + "/../shared/goldens/structured/";

std::function<Expr(Expressions&)> grammar(const std::string& text) {
  return [text](Expressions& e) { return parse_grammar(e, text, "grammar"); };
}

struct Case {
  std::string grammar;
  Texts accepted, refused;
};

void check(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.grammar.substr(0, 200));
    const std::string error = refusal(grammar(c.grammar));
    EXPECT_EQ(error, "");
    if (!error.empty()) continue;
    Language language(grammar(c.grammar));
    for (const std::string& text : c.accepted) EXPECT_TRUE(language.has(text)) << text;
    for (const std::string& text : c.refused) EXPECT_FALSE(language.has(text)) << text;
  }
}

struct Refusal {
  std::string grammar, message;
};

void check(const std::vector<Refusal>& cases) {
  for (const Refusal& c : cases) {
    const std::string error = refusal(grammar(c.grammar));
    EXPECT_THAT(error, StartsWith("grammar: ")) << c.grammar.substr(0, 200);
    EXPECT_THAT(error, HasSubstr(c.message)) << c.grammar.substr(0, 200);
  }
}

TEST(Gbnf, HasEachConstruct) {
  check(std::vector<Case>{
      {R"(root ::= "a\n\r\t\\\"\x41\u00e9\U0001F600" "")", {"a\n\r\t\\\"Aé😀"}, {"", "a"}},
      {"root ::= [a-cX] [^a-c] [\\]\\-\\^a]", {"aX]", "X\n-", "bé^", "cda"}, {"aa]", "dX]", "aXb"}},
      {"root ::= [+-]", {"+", "-"}, {",", "+-"}},
      {"root ::= [^]", {"a", "\n", "é"}, {"", "ab", "\xff"}},
      {"root ::= [あ-ん]", {"い"}, {"a", "\xe3"}},
      {"root ::= . .", {"a\n", "é😀"}, {"a", "abc", "\xc3\xa9\xff"}},
      {"root ::= \"a\"* \"b\"+ \"c\"?", {"b", "aabbc"}, {"", "a", "bcc"}},
      {"root ::= \"a\"{2} | \"b\"{2,} | \"c\"{1,2} | \"d\"{0}",
       {"aa", "bb", "bbbb", "c", "cc", ""},
       {"a", "aaa", "b", "ccc", "d"}},
      {"root ::= (\"a\" | \"b\" [0-9])+ # a comment\n# \"c\"\n", {"a", "b1", "ab2a"}, {"b", "c"}},
      {"root ::=\n  \"a\" |\n  \"b\"\n | \"c\"\nx ::= \"d\"", {"a", "b", "c"}, {"d", "ab"}},
      {"root ::= my-rule_2 x\nmy-rule_2 ::= \"a\"\nx::=\"b\"|", {"ab", "a"}, {"b"}},
      {"root ::= () \"a\" (\"\" | \"b\")", {"a", "ab"}, {""}},
      {"root ::= (\"a\"+)+ \"b\"++", {"ab", "aabb"}, {"a", "b"}},
      {"r-1 ::= \"a\"\r\nroot ::= r-1\r\n", {"a"}, {"aa"}},
      {"root ::= \"::=\" \"#\"", {"::=#"}, {"::="}},
  });
}

TEST(Gbnf, MayBeRecursive) {
  check(std::vector<Case>{
      {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", "())", "()()"}},
      {"root ::= root \"a\" | \"b\"", {"b", "ba", "baaa"}, {"", "a", "bb"}},
      {"root ::= x \"a\" | \"b\"\nx ::= root \"c\"", {"b", "bca", "bcaca"}, {"bc", "ba"}},
      {"root ::= empty root \"a\" | \"b\"\nempty ::= \"\" | \"e\"",
       {"b", "ba", "eba", "eebaa"},
       {"e", "eb"}},
      {"root ::= root root | \"a\"", {"a", "aa", "aaaaaaaa"}, {"", "b", "ab"}},
      {"root ::= root? \"a\" root*", {"a", "aa", "aaaaa"}, {"", "ab"}},
      {"root ::= root | \"a\"", {"a"}, {"", "aa"}},
      {"root ::= \"a\" unused | \"b\"\nunused ::= unused \"c\"", {"b"}, {"a", "ac"}},
  });
}

TEST(Gbnf, NamesWhatIsWrong) {
  check(std::vector<Refusal>{
      {"root ::= missing", "line 1: the rule \"missing\" is not defined"},
      {"root ::= \"a\"\n\nx ::= y", "line 3: the rule \"y\""},
      {"rule ::= \"a\"", "no rule 'root'"},
      {"root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule \"root\" is already defined in line 1"},
      {"root ::= (\"a\"\nx ::= \"b\"", "instead of ) of the group in line 1"},
      {"root ::= \"a\")", "line 1: \")\" instead of"},
      {"root ::= \"a", "line 1: what begins with \" has no end"},
      {"root ::= [a-z", "line 1: what begins with [ has no end"},
      {"root ::= []", "no character"},
      {"root ::= [z-a]", "whose last is before the first"},
      {"root ::= [\\d]", "unknown escape sequence \\d"},
      {"root ::= \"\\x4\"", "\\x needs 2 hexadecimal digits"},
      {"root ::= \"\\ud800\"", "\\u needs 4 hexadecimal digits of a character"},
      {"root ::= \"a\"{3,2}", "at least 3 and at most 2"},
      {"root ::= \"a\"{x}", "instead of a number"},
      {"root ::= \"a\"{9999999999}", "more than 9 digits"},
      {"root ::= * \"a\"", "line 1: \"*\" instead of"},
      {"\"a\" ::= root", "line 1: "},
      {"::=", "line 1: "},
      {"root ::= \"a\" (?= \"b\")", "look-ahead"},
      {"root ::= TagDispatch((\"<a>\", x))\nx ::= \"a\"", "the macro TagDispatch"},
      {"root ::= Regex(\"a+\")", "the macro Regex"},
      {"root ::= <think> \"a\"", "\"<think>\" stands for a token"},
      {"root ::= <[1000]>", "stands for a token"},
      {"root ::= !<think>", "stands for a token"},
      {"root ::= x\nx[max_tokens=3] ::= \"a\"", "line 2: \"[max_tokens=3]\" before ::="},
      {"root ::= \"\xff\"", "UTF-8"},
  });
}

TEST(Lark, HasEachConstruct) {
  check(std::vector<Case>{
      {"start: \"a\" B\nB: \"b\"\n", {"ab"}, {"a", "a b"}},
      {"start: \"a\"\n  | \"b\" -> second\n  # comment\n  | \"c\" // comment\n",
       {"a", "c"},
       {"", "ab"}},
      {"?start.2: _x | y\n!_x: \"a\"\n?!y: Z\nZ.-1: \"z\"", {"a", "z"}, {"", "y"}},
      {"start: foo-bar->baz\nfoo-bar: \"a\"", {"a"}, {"", "b"}},
      {R"(start: "a\n\"\\\x41\u00e9")", {"a\n\"\\Aé"}, {"a"}},
      {R"(start: "aé!"i)", {"aé!", "Aé!", "AÉ!"}, {"a", "aé"}},
      {R"(start: /[a-c]+/ /X/i /a.b/s /[0-9]\/[0-9]/)",
       {"aaXa\nb1/2", "cxaxb0/0"},
       {"aX", "aXab1/2"}},
      {R"(start: /a.b/)", {"axb"}, {"a\nb"}},
      {"start: \"a\"..\"c\" \"あ\"..\"ん\"", {"aい", "cん"}, {"dい", "a", "aa"}},
      {"start: (\"a\" | \"b\")+ [\"c\" \"d\"] \"e\"?",
       {"a", "abcd", "be", "aacde"},
       {"", "ac", "ad"}},
      {"start: \"a\"~2 \"b\" ~ 1..2 \"c\"{2,3} \"d\"{,1} \"e\"{1,} \"f\"{1}",
       {"aabccef", "aabbcccdeeef"},
       {"abccef", "aabbbccef", "aabccddef", "aabccf"}},
      {"start:\n", {""}, {"a"}},
      {"start: | \"a\"", {"", "a"}, {"aa"}},
      {"start: A\nA: B | /x/ C\nB: \"b\"+\nC: (\"c\" | \"d\")*",
       {"b", "bb", "x", "xcd"},
       {"", "bx"}},
      {"start: A\nA: /[a-c]+/ & ~/.*b.*/ | \"b\"", {"a", "ac", "b"}, {"ab", "bb", "", "d"}},
      {"start: A\nA: ~\"a\"+", {"", "b", "aa"}, {"\xff"}},
      {"start: x\nx[capture, capture=\"y\"]: \"a\"", {"a"}, {""}},
      {"%llguidance {\"no_forcing\": true}\n%llguidance {}\nstart: \"a\"", {"a"}, {""}},
      {"start: \"[\" %json {\n  \"enum\": [\"}\", 1]\n} \"]\"\n",
       {"[\"}\"]", "[1]"},
       {"[]", "[2]"}},
  });
}

TEST(Lark, IgnoresTextBehindTerminals) {
  check(std::vector<Case>{
      {"%ignore \" \"+ | \"\\t\"\n%ignore C\nC: /#[^\\n]*\\n/\nstart: AB \"x\"? (\"y\" "
       "\"z\")*\nAB: \"a\" \"b\"",
       {"ab", "ab  ", "ab x\ty z yz", "ab #c\nx #\n "},
       {" ab", "a b", "ab #c", ""}},
      {"%llguidance {\"allow_initial_skip\": true}\nstart: \"a\" \"b\"\n%ignore \" \"",
       {" a b ", "ab"},
       {"  "}},
      {"start: %json {\"type\": \"integer\"} \"m\"\n%ignore \" \"", {"1m", "1 m "}, {" 1m"}},
  });
}

TEST(Lark, ImportsCommonTerminals) {
  const auto terminal = [](const std::string& name) {
    return "%import common." + name + "\nstart: " + name + "\n";
  };
  check(std::vector<Case>{
      {terminal("INT"), {"0", "012"}, {"", "-1", "1."}},
      {terminal("SIGNED_INT"), {"0", "-12", "+1"}, {"--1", "1.0"}},
      {terminal("DECIMAL"), {"1.", ".5", "1.25"}, {"1", ".", "1.e5"}},
      {terminal("FLOAT"), {"1.", ".5", "1e5", "1.5E-3"}, {"1", "e5"}},
      {terminal("SIGNED_FLOAT"), {"-1.", "+1e5"}, {"-1"}},
      {terminal("NUMBER"), {"1", "1.", ".5", "1e5", "1.5e+3"}, {".", "-1", "1e"}},
      {terminal("SIGNED_NUMBER"), {"-1", "+1.5e3"}, {"-"}},
      {terminal("ESCAPED_STRING"),
       {R"("")", R"("a\"b\\")", "\"é\n\""},
       {R"("a)", R"("\")", R"("a"b")"}},
      {terminal("CNAME"), {"_", "aB_1"}, {"1a", "é"}},
      {terminal("WORD"), {"aB"}, {"", "a1"}},
      {terminal("HEXDIGIT"), {"a", "F", "0"}, {"g", "00"}},
      {terminal("WS"), {" ", "\t\f\r\n"}, {"", "\v"}},
      {terminal("WS_INLINE"), {" \t"}, {"\n"}},
      {terminal("NEWLINE"), {"\n", "\r\n\n"}, {"\r", ""}},
      {terminal("SH_COMMENT"), {"#", "# a"}, {"#\n"}},
      {terminal("CPP_COMMENT"), {"//", "// a"}, {"/", "//\n"}},
      {terminal("C_COMMENT"), {"/**/", "/***/", "/* a\n*b **/"}, {"/*/", "/**/ */"}},
      {terminal("SQL_COMMENT"), {"-- a"}, {"-"}},
      {"%import common (INT, WORD -> W)\nstart: INT W X\n%import common.LETTER -> X\n",
       {"1ab"},
       {"1"}},
  });
}

TEST(Lark, MayBeRecursive) {
  check(std::vector<Case>{
      {"start: start \"+\" NUM | NUM\nNUM: /[0-9]+/\n%ignore \" \"",
       {"1", "1 + 23+4"},
       {"", "1+", "+1"}},
      {"start: s\ns: s s | \"a\"", {"a", "aaaaa"}, {"", "b"}},
      {"start: [start] \"a\"", {"a", "aaa"}, {""}},
  });
}

TEST(Lark, NamesWhatIsWrong) {
  check(std::vector<Refusal>{
      {"start: missing", "line 1: the rule \"missing\" is not defined"},
      {"start: \"a\"\n\nb: C", "line 3: the rule \"C\" is not defined"},
      {"a: \"x\"", "no rule 'start'"},
      {"", "no rule 'start'"},
      {"start: \"a\"\nstart: \"b\"", "line 2: the rule \"start\" is already defined in line 1"},
      {"%import common.INT\nINT: \"a\"\nstart: INT", "line 2: the rule \"INT\" is already defined"},
      {"start: (\"a\"\nb: \"b\"", "instead of ) of the group in line 1"},
      {"start: [\"a\")", "instead of ] of the group"},
      {"start: \"a\" )", "\")\" instead of"},
      {"start: \"a\"\n \"b\"", "line 2: \"\\\"b\\\"\" instead of the name of a rule"},
      {"start \"a\"", "instead of :"},
      {"start: /(/", "line 1"},
      {"start: /a", "has no end"},
      {"start: \"a\\.\"", "unknown escape sequence \\."},
      {"start: 'a'", "\"'\" instead of"},
      {"start: A\nA: A \"x\" | \"y\"", "line 2: the terminal \"A\" contains itself"},
      {"start: A\nA: b\nb: \"b\"", "line 2: a terminal contains the rule \"b\""},
      {"start: \"a\" & \"b\"", "& may only stand in a terminal"},
      {"start: ~\"a\"", "~ may only stand in a terminal"},
      {"start: \"ab\"..\"c\"", "from one character to a later one"},
      {"start: \"c\"..\"a\"", "from one character to a later one"},
      {"start: \"a\"x", "the flags x of a string"},
      {"start: /a/x", "the flag x of a regular expression"},
      {"%import common.FOO\nstart: \"a\"", "no terminal \"FOO\""},
      {"%import .other.FOO\nstart: FOO", "only terminals of 'common'"},
      {"%import common.INT -> int\nstart: int", "upper case"},
      {"%declare A\nstart: \"a\"", "the directive \"%declare\""},
      {"%override start: \"a\"", "the directive \"%override\""},
      {"%llguidance {\"skip_repetition\": \"once\"}\nstart: \"a\"",
       "the option \"skip_repetition\""},
      {"%llguidance {\"a\": }\nstart: \"a\"", "not valid JSON"},
      {"start: %json {\"type\": \"nonsense\"}", "line 1"},
      {"start: %json \"a\"", "instead of { and a JSON schema"},
      {"start: %json {\"a\": ", "has no end"},
      {"A: %json {}\nstart: A", "\"%json\" is not supported here"},
      {"start: %regex {\"substring_words\": \"a\"}", "\"%regex\" is not supported"},
      {"start: %lark {\nstart: \"a\"\n}", "\"%lark\" is not supported"},
      {"start: _sep{\"a\", \",\"}\n_sep{x, s}: x (s x)*", "the template \"_sep\""},
      {"start: _sep{\"a\", \",\"}\n_sep: \"x\"", "instead of a number"},
      {"start: <|python_tag|>", "the special token \"<|python_tag|>\""},
      {"start: @other", "a reference to another grammar"},
      {"start[max_tokens=10]: /a*/", "the attribute \"max_tokens\""},
      {"start[stop=\"a\"]: /a*/", "the attribute \"stop\""},
      {"start: x \"b\"\nx[lazy]: /a+/", "line 2: the attribute \"lazy\""},
      {"start[suffix=\"a\"]: /a*/", "the attribute \"suffix\""},
      {"start::a: \"b\"", "line 1"},
  });
}

TEST(GrammarText, BoundsHostileGrammars) {
  const auto times = [](size_t n, const std::string& text) {
    std::string all;
    while (n-- > 0) all += text;
    return all;
  };
  std::string many_rules = "root ::= \"a\"\n", chain = "root ::= r0\nr4999 ::= \"a\"\n",
              terminals = "start: T0\nT4999: \"a\"\n";
  for (int i = 0; i < 50'000; ++i) many_rules += fmt::format("r{} ::= \"a\"\n", i);
  for (int i = 0; i < 4999; ++i) chain += fmt::format("r{} ::= r{}\n", i, i + 1);
  for (int i = 0; i < 4999; ++i) terminals += fmt::format("T{}: T{}\n", i, i + 1);
  check(std::vector<Refusal>{
      {"root ::= " + times(100'000, "("), "more than 200 levels of nesting"},
      {"start: " + times(100'000, "["), "more than 200 levels of nesting"},
      {"root ::= \"" + times(1 << 20, "a") + "\"", "at most 1048576 are allowed"},
      {many_rules, "more than 50000 rules"},
      {"root ::= \"a\"" + times(100'000, "+"), "more than 200 repetitions of one item"},
      {terminals, "more than 200 levels of nesting"},
  });
  check(std::vector<Case>{
      {chain, {"a"}, {"", "aa"}},
      {"root ::= \"a\"{1000000}", {}, {"", "a", "b"}},
      {"start: A\nA: " + times(100'001, "~") + "\"a\"", {"", "b"}, {"a"}},
      {"root ::= " + times(100'000, "\"a\" "), {times(100'000, "a")}, {times(99'999, "a")}},
      {"root ::= " + times(100'000, "\"a\" | ") + "\"b\"", {"a", "b"}, {"c"}},
  });
}

/// Rows of a file of the goldens: {"kind", "spec", "rows": [[text, accepted?]...]}.
TEST(GrammarText, AgreesWithGoldens) {
  const std::string path = kGoldens + "grammar.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  for (const Json& line : read_json_lines(path)) {
    const std::string text = line["spec"].string();
    SCOPED_TRACE(text);
    if (line["rows"].front().size() == 1) {
      EXPECT_NE(refusal(grammar(text)), "");
      continue;
    }
    Language language(grammar(text));
    for (const Json& row : line["rows"])
      EXPECT_EQ(language.has(row[size_t{0}].string()), row[size_t{1}].get<bool>()) << row;
  }
}

TEST(Choice, AgreesWithGoldens) {
  const std::string path = kGoldens + "choice.jsonl";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here";
  for (const Json& line : read_json_lines(path)) {
    const auto texts = line["spec"].get<Texts>();
    Language language([&](Expressions& e) { return e.texts(texts); });
    for (const Json& row : line["rows"])
      EXPECT_EQ(language.has(row[size_t{0}].string()), row[size_t{1}].get<bool>()) << row;
  }
}

}  // namespace

}  // namespace nanovllm::grammar
