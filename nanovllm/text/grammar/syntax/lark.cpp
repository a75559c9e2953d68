// Lark's grammars (docs/grammar.md of Lark) as llguidance takes them (docs/syntax.md there).

#include <algorithm>
#include <array>
#include <utility>

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/grammar/regex/regex.h"
#include "nanovllm/text/grammar/schema/json_schema.h"
#include "nanovllm/text/grammar/syntax/grammar_parser.h"
#include "nanovllm/text/grammar/syntax/grammar_text.h"

namespace nanovllm::grammar {

namespace {

/// The terminals of Lark's library "common". As in llguidance, letters are those of ASCII, and a
/// string may have line breaks.
constexpr std::array<std::pair<std::string_view, std::string_view>, 25> kCommonTerminals{{
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", R"([0-9]+\.[0-9]*|\.[0-9]+)"},
    {"_EXP", "[eE][+-]?[0-9]+"},
    {"FLOAT", R"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_FLOAT", R"([+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?))"},
    {"NUMBER", R"(([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"SIGNED_NUMBER", R"([+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", R"("([^"\\]|\\.)*")"},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z_0-9]*"},
    {"WS_INLINE", R"([ \t]+)"},
    {"WS", R"([ \t\f\r\n]+)"},
    {"CR", R"(\r)"},
    {"LF", R"(\n)"},
    {"NEWLINE", R"((\r?\n)+)"},
    {"SH_COMMENT", R"(#[^\n]*)"},
    {"CPP_COMMENT", R"(\/\/[^\n]*)"},
    {"C_COMMENT", R"(\/\*([^*]|\*+[^*\/])*\*+\/)"},
    {"SQL_COMMENT", R"(--[^\n]*)"},
}};

bool names_terminal(std::string_view name) {
  const size_t first = name.find_first_not_of('_');
  return first != name.npos && name[first] >= 'A' && name[first] <= 'Z';
}

class Lark final : GrammarParser {
 public:
  Lark(Expressions& e, std::string_view text, const std::string& where)
      : GrammarParser(e, Syntax::kLark, text, where) {}

  Expr parse() {
    while (at_ < tokens_.size()) {
      end_ = at_ + 1;
      while (end_ < tokens_.size() && (!tokens_[end_].starts_line || tokens_[end_].text == "|"))
        ++end_;
      if (peek().kind == Kind::kDirective) directive();
      else definition();
      at_ = end_;
    }
    in_terminal_ = true;
    for (Rule& rule : rules_) {
      if (names_terminal(rule.name.text)) terminal(rule);
      else rule.expr = e_.new_rule(std::string(rule.name.text));
    }
    std::vector<Expr> ignored;
    for (const auto& [begin, end] : ignored_) ignored.push_back(read(begin, end));
    between_ = e_.repeat(e_.any_of(ignored), 0);
    in_terminal_ = false;
    for (const Rule& rule : rules_)
      if (!names_terminal(rule.name.text)) e_.define(rule.expr, read(rule.begin, rule.end));
    const Expr start = start_rule("start");
    return starts_with_ignored_ ? e_.sequence(between_, start) : start;
  }

 private:
  void definition() {
    while (take("?") || take("!")) {  // the form of the syntax tree
    }
    const Token& name = expect(Kind::kName, "the name of a rule");
    // Attributes such as "lazy" depend on the lexer or on tokens. To capture changes no text.
    while (take("[") || take(",")) {
      const Token& attribute = expect(Kind::kName, "an attribute");
      if (attribute.text != "capture")
        error(attribute.line, "the attribute {} is not supported", shown(attribute.text));
      if (take("=")) expect(Kind::kString, "a name");
      if (!next_is(",") && !take("]")) unexpected("]");
    }
    if (next_is("{")) error(name.line, "the template {} is not supported", shown(name.text));
    if (take(".")) {  // a priority, which cannot change the language
      take("-");
      expect(Kind::kNumber, "a priority");
    }
    if (!take(":")) unexpected(":");
    add_rule(name, at_, end_);
  }

  void directive() {
    const Token& token = tokens_[at_++];
    if (token.text == "%ignore") {
      ignored_.emplace_back(at_, end_);
    } else if (token.text == "%import") {
      import_terminals();
    } else if (token.text == "%llguidance" || token.text == "%grammar_options") {
      const Json options = object(expect(Kind::kJson, "{ and options"));
      for (const auto& [key, value] : options.items()) {
        if (key == "allow_initial_skip" && value.is_boolean())
          starts_with_ignored_ = value.get<bool>();
        else if (key != "no_forcing")  // forced tokens are the same text
          error(token.line, "the option {} is not supported", shown(key));
      }
    } else {
      error(token.line, "the directive {} is not supported", shown(token.text));
    }
    if (token.text != "%ignore" && peek().kind != Kind::kEnd) unexpected("the end of the line");
  }

  void import_terminals() {
    if (peek().text != "common")
      error(tokens_[at_ - 1].line, "only terminals of 'common' can be imported");
    ++at_;
    const bool list = !take(".");
    if (list && !take("(")) unexpected("(");
    do {
      const Token& name = expect(Kind::kName, "the name of a terminal");
      const auto common = std::ranges::find(kCommonTerminals, name.text,
                                            &std::pair<std::string_view, std::string_view>::first);
      if (common == kCommonTerminals.end())
        error(name.line, "'common' has no terminal {}", shown(name.text));
      const Token& alias = take("->") ? expect(Kind::kName, "a name") : name;
      if (!names_terminal(alias.text)) error(alias.line, "a terminal has a name in upper case");
      add_rule(alias, 0, 0).pattern = common->second;
    } while (list && take(","));
    if (list && !take(")")) unexpected(")");
  }

  Expr terminal(Rule& rule) {
    if (rule.state == Rule::kOpen)
      error(rule.name.line, "the terminal {} contains itself", shown(rule.name.text));
    if (rule.state == Rule::kUnread) {
      rule.state = Rule::kOpen;
      const bool outer = std::exchange(in_terminal_, true);
      rule.expr = rule.pattern.empty() ? read(rule.begin, rule.end) : regex(rule.pattern, 1);
      in_terminal_ = outer;
      rule.state = Rule::kRead;
    }
    return rule.expr;
  }

  Expr alternative() override {
    Expr result = sequence();
    while (next_is("&")) {
      if (!in_terminal_) error(peek().line, "& may only stand in a terminal");
      ++at_;
      result = e_.both(result, sequence());
    }
    if (take("->")) expect(Kind::kName, "an alias");
    return result;
  }

  std::optional<Expr> item() override {
    bool negated = false;
    for (; next_is("~"); ++at_, negated = !negated)
      if (!in_terminal_) error(peek().line, "~ may only stand in a terminal or before a number");
    const std::optional<Expr> result = plain_item();
    if (!negated || !result) return result;
    return e_.both(e_.repeat(any_character(), 0), e_.complement(*result));
  }

  std::optional<Expr> plain_item() {
    if (next_is("(")) return group(")");
    if (next_is("[")) return e_.optional(group("]"));
    const Token& token = peek();
    if (token.kind == Kind::kName && next_is(":", 1)) return std::nullopt;  // the next definition
    if (token.kind == Kind::kName && !names_terminal(token.text)) {
      ++at_;
      Rule& rule = find_rule(token);
      if (in_terminal_) error(token.line, "a terminal contains the rule {}", shown(token.text));
      return rule.expr;
    }
    const std::optional<Expr> result = lexeme(token);
    return result && !in_terminal_ ? e_.sequence(*result, between_) : result;
  }

  /// A terminal or what has the rank of one: ignored text may stand around it, but not in it.
  std::optional<Expr> lexeme(const Token& token) {
    if (token.kind == Kind::kSpecialToken || next_is("@"))
      error(token.line, "{} is not supported",
            token.kind == Kind::kSpecialToken ? "the special token " + shown(token.text)
                                              : "a reference to another grammar");
    if (token.kind == Kind::kDirective) return embedded(token);
    if (token.kind != Kind::kName && token.kind != Kind::kString && token.kind != Kind::kRegex)
      return std::nullopt;
    ++at_;
    if (token.kind == Kind::kName) return terminal(find_rule(token));
    const size_t close = token.text.rfind(token.text[0]);
    const std::string_view inner = token.text.substr(1, close - 1);
    const std::string_view flags = token.text.substr(close + 1);
    if (token.kind == Kind::kRegex) {
      if (const size_t i = flags.find_first_not_of("imsu"); i != flags.npos)
        error(token.line, "the flag {} of a regular expression is not supported", flags[i]);
      std::string known(flags);
      std::erase(known, 'u');
      return regex(known.empty() ? std::string(inner) : fmt::format("(?{}:{})", known, inner),
                   token.line);
    }
    const std::string text = unescaped(inner, token.line);
    if (take("..")) return range(text, expect(Kind::kString, "the last character of a range"));
    if (flags.empty()) return e_.text(text);
    if (flags != "i") error(token.line, "the flags {} of a string are not supported", flags);
    std::string pattern;
    for (const char *p = text.data(), *end = p + text.size(); p != end;)
      pattern += fmt::format("\\u{{{:x}}}", static_cast<uint32_t>(next_code_point(p)));
    return regex(fmt::format("(?i:{})", pattern), token.line);
  }

  Expr range(const std::string& first, const Token& token) {
    const std::string last = unescaped(token.text.substr(1, token.text.rfind('"') - 1), token.line);
    if (first.empty() || character_len(first) != first.size() || last.empty() ||
        character_len(last) != last.size() ||
        code_point_at(first.data()) > code_point_at(last.data()))
      error(token.line, "a range is from one character to a later one, \"a\"..\"z\"");
    return character(e_, {code_point_at(first.data()), code_point_at(last.data())}, Coding::kUtf8);
  }

  Expr embedded(const Token& token) {
    if (token.text != "%json" || in_terminal_)
      error(token.line, "{} is not supported here", shown(token.text));
    ++at_;
    const Token& schema = expect(Kind::kJson, "{ and a JSON schema");
    return parse_json_schema(e_, object(schema), {}, place(schema.line));
  }

  Json object(const Token& token) const { return parse_json(token.text, place(token.line)); }
  Expr regex(std::string_view pattern, uint32_t line) {
    return parse_regex(e_, pattern, {}, place(line));
  }

  std::vector<std::pair<size_t, size_t>> ignored_;  ///< tokens of each %ignore
  Expr between_ = Expr::kEmpty;                     ///< what may follow a terminal
  bool starts_with_ignored_ = false;
  bool in_terminal_ = false;
};

}  // namespace

Expr parse_lark(Expressions& e, std::string_view text, const std::string& where) {
  return Lark(e, text, where).parse();
}

}  // namespace nanovllm::grammar
