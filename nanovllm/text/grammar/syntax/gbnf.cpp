// GBNF, the grammars of llama.cpp (grammars/README.md there), and xgrammar's EBNF, which is the
// same but for its macros and the options of rules.

#include <algorithm>
#include <array>

#include "nanovllm/text/grammar/syntax/grammar_parser.h"
#include "nanovllm/text/grammar/syntax/grammar_text.h"

namespace nanovllm::grammar {

namespace {

class Gbnf final : GrammarParser {
 public:
  Gbnf(Expressions& e, std::string_view text, const std::string& where)
      : GrammarParser(e, Syntax::kGbnf, text, where) {}

  Expr parse() {
    // A rule ends where the next one begins, for a name before "::=" cannot be an item.
    const auto is_head = [this](size_t i) {
      return i + 1 < tokens_.size() && tokens_[i].kind == Kind::kName &&
             tokens_[i + 1].text == "::=";
    };
    if (!is_head(0)) unexpected("NAME ::=");
    for (size_t i = 1; i < tokens_.size(); ++i)
      if (tokens_[i].text == "::=" && tokens_[i - 1].kind != Kind::kName)
        error(tokens_[i].line,
              "{} before ::= instead of a name; options of a rule are not supported",
              shown(tokens_[i - 1].text));
    for (size_t i = 0; i < tokens_.size();) {
      const size_t head = i;
      do ++i;
      while (i < tokens_.size() && !is_head(i));
      add_rule(tokens_[head], head + 2, i).expr = e_.new_rule(std::string(tokens_[head].text));
    }
    for (const Rule& rule : rules_) e_.define(rule.expr, read(rule.begin, rule.end));
    return start_rule("root");
  }

 private:
  std::optional<Expr> item() override {
    const Token& token = peek();
    if (next_is("(")) {
      if (next_is("?", 1)) error(token.line, "look-ahead (?=...) is not supported");
      return group(")");
    }
    if (next_is("!") || token.kind == Kind::kSpecialToken)
      error(token.line, "{} stands for a token, which is not supported; write its text in quotes",
            shown(token.text));
    if (take(".")) return any_character();
    if (token.kind == Kind::kName) {
      check_name(token);
      ++at_;
      return find_rule(token).expr;
    }
    if (token.kind != Kind::kString && token.kind != Kind::kSet) return std::nullopt;
    ++at_;
    const std::string_view inner = token.text.substr(1, token.text.size() - 2);
    if (token.kind == Kind::kString) return e_.text(unescaped(inner, token.line));
    return character(e_, set(inner, token.line), Coding::kUtf8);
  }

  void check_name(const Token& name) const {
    static constexpr std::array<std::string_view, 6> kMacros{
        "TagDispatch", "TokenTagDispatch", "Token", "ExcludeToken", "Regex", "Substring"};
    if (next_is("(", 1) && !rule_names_.contains(name.text) &&
        std::ranges::find(kMacros, name.text) != kMacros.end())
      error(name.line, "the macro {} is not supported", name.text);
  }

  CodePoints set(std::string_view inner, uint32_t line) const {
    const bool negated = inner.starts_with('^');
    if (negated) inner.remove_prefix(1);
    else if (inner.empty()) error(line, "no character is in []");
    CodePoints characters;
    while (!inner.empty()) {
      const char32_t first = next_character(inner, line);
      char32_t last = first;
      if (inner.size() > 1 && inner[0] == '-') {
        inner.remove_prefix(1);
        last = next_character(inner, line);
      }
      if (first > last) error(line, "a range of characters whose last is before the first");
      characters.add(first, last);
    }
    return negated ? characters.complement() : characters;
  }
};

}  // namespace

Expr parse_gbnf(Expressions& e, std::string_view text, const std::string& where) {
  return Gbnf(e, text, where).parse();
}

}  // namespace nanovllm::grammar
