#include "nanovllm/text/grammar/syntax/grammar_parser.h"

#include <algorithm>
#include <charconv>

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/grammar/syntax/grammar_text.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm::grammar {

namespace {

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool starts_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool continues_name(char c) { return starts_name(c) || is_digit(c) || c == '-'; }

}  // namespace

GrammarParser::GrammarParser(Expressions& e, Syntax syntax, std::string_view text,
                             const std::string& where)
    : e_(e), syntax_(syntax), where_(where) {
  require(text.size() <= kMaxGrammarBytes, "{}: a grammar of {} bytes; at most {} are allowed",
          where, text.size(), kMaxGrammarBytes);
  require_utf8(text, where);
  add_tokens(text);
  end_ = tokens_.size();
}

/// The place after the closing quote, slash or bracket.
size_t GrammarParser::end_of_literal(std::string_view text, size_t begin, char close,
                                     uint32_t line) const {
  for (size_t i = begin + 1; i < text.size() && text[i] != '\n'; ++i) {
    if (text[i] == '\\') ++i;
    else if (text[i] == close) return i + 1;
  }
  error(line, "what begins with {} has no end", text[begin]);
}

void GrammarParser::add_tokens(std::string_view text) {
  const bool lark = syntax_ == Syntax::kLark;
  uint32_t line = 1;
  size_t open = 0;  // parentheses
  bool new_line = true;
  for (size_t i = 0, begin = 0; i < text.size(); begin = i) {
    const char c = text[i];
    const std::string_view rest = text.substr(i);
    if (is_space(c)) {
      if (c == '\n') ++line, new_line = true;
      ++i;
      continue;
    }
    if (c == '#' || (lark && rest.starts_with("//"))) {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    Token token{Kind::kSymbol, new_line && open == 0, line, {}};
    if (starts_name(c) || (c == '%' && lark)) {
      token.kind = c == '%' ? Kind::kDirective : Kind::kName;
      // The dash of "->" begins an alias.
      do ++i;
      while (i < text.size() && continues_name(text[i]) && !text.substr(i).starts_with("->"));
    } else if (is_digit(c)) {
      token.kind = Kind::kNumber;
      i = std::min(text.find_first_not_of("0123456789", i), text.size());
    } else if (c == '"' || (c == '/' && lark)) {
      token.kind = c == '"' ? Kind::kString : Kind::kRegex;
      i = end_of_literal(text, i, c, line);
      const size_t flags = std::min(text.find_first_not_of("imslux", i), text.size());
      if (lark && (flags == text.size() || !continues_name(text[flags]))) i = flags;
    } else if (c == '<' || (c == '[' && !lark)) {
      token.kind = c == '<' ? Kind::kSpecialToken : Kind::kSet;
      i = end_of_literal(text, i, c == '<' ? '>' : ']', line);
    } else if (c == '{' && !tokens_.empty() && tokens_.back().kind == Kind::kDirective) {
      token.kind = Kind::kJson;
      token.starts_line = false;
      for (int braces = 1; braces > 0;) {
        if (++i == text.size()) error(token.line, "an object that begins with {{ has no end");
        if (text[i] == '"') i = end_of_literal(text, i, '"', line) - 1;
        line += text[i] == '\n' ? 1 : 0;
        braces += text[i] == '{' ? 1 : text[i] == '}' ? -1 : 0;
      }
      ++i;
    } else {
      i += rest.starts_with("::=") ? 3 : rest.starts_with("->") || rest.starts_with("..") ? 2 : 1;
      if (lark && (c == '(' || c == '[')) ++open;
      if (lark && (c == ')' || c == ']') && open > 0) --open;
    }
    token.text = text.substr(begin, i - begin);
    tokens_.push_back(token);
    new_line = false;
  }
}

bool GrammarParser::take(std::string_view symbol) {
  const bool found = next_is(symbol);
  at_ += found ? 1 : 0;
  return found;
}

const GrammarParser::Token& GrammarParser::expect(Kind kind, const char* what) {
  if (peek().kind != kind) unexpected(what);
  return tokens_[at_++];
}

void GrammarParser::unexpected(std::string_view expected) const {
  const bool at_end = peek().kind == Kind::kEnd && at_ > 0;
  error(at_end ? tokens_[at_ - 1].line : peek().line, "{} instead of {}", shown(peek().text),
        expected);
}

GrammarParser::Rule& GrammarParser::add_rule(const Token& name, size_t begin, size_t end) {
  if (rules_.size() == kMaxGrammarRules) error(name.line, "more than {} rules", kMaxGrammarRules);
  const auto [found, added] = rule_names_.emplace(name.text, rules_.size());
  if (!added)
    error(name.line, "the rule {} is already defined in line {}", shown(name.text),
          rules_[found->second].name.line);
  return rules_.emplace_back(Rule{.name = name, .begin = begin, .end = end});
}

GrammarParser::Rule& GrammarParser::find_rule(const Token& name) {
  const auto found = rule_names_.find(name.text);
  if (found == rule_names_.end()) error(name.line, "the rule {} is not defined", shown(name.text));
  return rules_[found->second];
}

Expr GrammarParser::start_rule(std::string_view name) const {
  const auto found = rule_names_.find(name);
  require(found != rule_names_.end(), "{}: the grammar has no rule '{}', where it would start",
          where_, name);
  return rules_[found->second].expr;
}

Expr GrammarParser::read(size_t begin, size_t end) {
  const size_t outer_at = std::exchange(at_, begin), outer_end = std::exchange(end_, end);
  const Expr result = alternatives();
  if (at_ != end_) unexpected("an item of a rule");
  at_ = outer_at, end_ = outer_end;
  return result;
}

Expr GrammarParser::alternatives() {
  if (++nesting_ > kMaxGrammarNesting)
    error(peek().line, "more than {} levels of nesting", kMaxGrammarNesting);
  std::vector<Expr> parts;
  do parts.push_back(alternative());
  while (take("|"));
  --nesting_;
  return e_.any_of(parts);
}

Expr GrammarParser::sequence() {
  std::vector<Expr> parts;
  while (const std::optional<Expr> part = item()) parts.push_back(repeated(*part));
  Expr result = Expr::kEmpty;
  for (size_t i = parts.size(); i-- > 0;) result = e_.sequence(parts[i], result);
  return result;
}

Expr GrammarParser::group(std::string_view close) {
  const uint32_t line = tokens_[at_++].line;
  const Expr result = alternatives();
  if (!take(close)) unexpected(fmt::format("{} of the group in line {}", close, line));
  return result;
}

uint32_t GrammarParser::number() {
  const Token& token = expect(Kind::kNumber, "a number");
  uint32_t value = 0;
  if (token.text.size() > 9)
    error(token.line, "the number {} has more than 9 digits", shown(token.text));
  std::from_chars(token.text.data(), token.text.data() + token.text.size(), value);
  return value;
}

Expr GrammarParser::repeated(Expr part) {
  for (int times = 0;; ++times) {
    const uint32_t line = peek().line;
    uint32_t min = 0, max = kUnlimited;
    if (take("+")) min = 1;
    else if (take("?")) max = 1;
    else if (take("{")) {
      if (!next_is(",")) max = min = number();
      if (take(",")) max = next_is("}") ? kUnlimited : number();
      if (!take("}")) unexpected("}");
    } else if (next_is("~") && peek(1).kind == Kind::kNumber && take("~")) {
      max = min = number();
      if (take("..")) max = number();
    } else if (!take("*")) return part;
    if (min > max) error(line, "a repetition of at least {} and at most {} times", min, max);
    if (times == kMaxGrammarNesting) error(line, "more than {} repetitions of one item", times);
    part = e_.repeat(part, min, max);
  }
}

char32_t GrammarParser::next_character(std::string_view& literal, uint32_t line) const {
  const auto next = [&] {
    const char* p = literal.data();
    const char32_t c = next_code_point(p);
    literal.remove_prefix(static_cast<size_t>(p - literal.data()));
    return c;
  };
  if (const char32_t c = next(); c != '\\') return c;
  const std::string_view escape = literal.substr(0, utf8_len(literal[0]));
  const char32_t c = next();
  static constexpr std::string_view kNames = "nrtbfav0e";
  if (const size_t i = kNames.find(escape); i != kNames.npos) return "\n\r\t\b\f\a\v\0\x1b"[i];
  if (const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0; digits > 0) {
    uint32_t value = 0;
    const std::string_view hex = literal.substr(0, digits);
    const auto end = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16).ptr;
    if (end != hex.data() + digits || !CodePoints::all().contains(value))
      error(line, "\\{} needs {} hexadecimal digits of a character", escape, digits);
    literal.remove_prefix(digits);
    return value;
  }
  // GBNF may escape each sign, but Lark would keep the backslash before most of them.
  static constexpr std::string_view kSigns = "\"\\'/^$.*+?()[]{}|-";
  if (kSigns.substr(0, syntax_ == Syntax::kLark ? 4 : kSigns.npos).find(escape) == kSigns.npos)
    error(line, "unknown escape sequence \\{}", escape);
  return c;
}

std::string GrammarParser::unescaped(std::string_view literal, uint32_t line) const {
  std::string text;
  while (!literal.empty()) text += to_utf8(next_character(literal, line));
  return text;
}

Expr parse_grammar(Expressions& e, std::string_view text, const std::string& where) {
  return text.find("::=") != text.npos ? parse_gbnf(e, text, where) : parse_lark(e, text, where);
}

}  // namespace nanovllm::grammar
