#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/text/grammar/language/code_points.h"

namespace nanovllm::grammar {

inline constexpr size_t kMaxGrammarBytes = 1 << 20;
inline constexpr size_t kMaxGrammarRules = 50'000;
inline constexpr int kMaxGrammarNesting = 200;

/// What GBNF and Lark have in common: tokens, groups, alternatives, repetition and named rules. The
/// body of a rule is a range of tokens, so that it can be read at any time.
class GrammarParser {
 protected:
  enum class Syntax : uint8_t { kGbnf, kLark };
  enum class Kind : uint8_t {
    kName,
    kNumber,
    kString,        ///< with its quotes and Lark's flags, as kRegex has its slashes
    kRegex,         ///< Lark
    kSet,           ///< GBNF: [a-z]
    kSpecialToken,  ///< <name>
    kDirective,     ///< Lark: %name
    kJson,          ///< Lark: the object after a directive
    kSymbol,
    kEnd
  };
  struct Token {
    Kind kind;
    bool starts_line;  ///< outside of parentheses, so that a statement of Lark may begin here
    uint32_t line;
    std::string_view text;
  };
  struct Rule {
    Token name;
    size_t begin, end;  ///< the body's tokens
    Expr expr = Expr::kNothing;
    std::string_view pattern{};                      ///< of a terminal that Lark imports
    enum { kUnread, kOpen, kRead } state = kUnread;  ///< of a terminal
  };

  GrammarParser(Expressions& e, Syntax syntax, std::string_view text, const std::string& where);
  ~GrammarParser() = default;

  /// One alternative.
  virtual Expr alternative() { return sequence(); }
  /// An item without its repetition, or nothing where a sequence ends.
  virtual std::optional<Expr> item() = 0;

  std::string place(uint32_t line) const { return fmt::format("{}: line {}", where_, line); }
  template <class... Args>
  [[noreturn]] void error(uint32_t line, fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: {}", place(line), fmt::format(format, std::forward<Args>(args)...));
  }
  static std::string shown(std::string_view text) { return printable(Json(text)); }

  /// A token of the body that is being read; kEnd after its last one.
  const Token& peek(size_t ahead = 0) const {
    return at_ + ahead < end_ ? tokens_[at_ + ahead] : end_token_;
  }
  bool next_is(std::string_view symbol, size_t ahead = 0) const {
    return peek(ahead).kind == Kind::kSymbol && peek(ahead).text == symbol;
  }
  bool take(std::string_view symbol);
  const Token& expect(Kind kind, const char* what);
  [[noreturn]] void unexpected(std::string_view expected) const;

  Rule& add_rule(const Token& name, size_t begin, size_t end);
  Rule& find_rule(const Token& name);
  Expr start_rule(std::string_view name) const;
  /// The expression of these tokens.
  Expr read(size_t begin, size_t end);
  Expr sequence();
  /// The alternatives in parentheses or brackets.
  Expr group(std::string_view close);

  /// Takes a character, which may be an escape sequence, from the start of a literal.
  char32_t next_character(std::string_view& literal, uint32_t line) const;
  std::string unescaped(std::string_view literal, uint32_t line) const;
  Expr any_character() { return character(e_, CodePoints::all(), Coding::kUtf8); }

  Expressions& e_;
  const Syntax syntax_;
  const std::string& where_;
  std::vector<Token> tokens_;
  size_t at_ = 0, end_ = 0;  ///< the next token, and the end of the body
  std::vector<Rule> rules_;
  std::unordered_map<std::string_view, size_t> rule_names_;

 private:
  void add_tokens(std::string_view text);
  size_t end_of_literal(std::string_view text, size_t begin, char close, uint32_t line) const;
  Expr alternatives();
  Expr repeated(Expr part);
  uint32_t number();

  const Token end_token_{Kind::kEnd, false, 1, "the end of the rule"};
  int nesting_ = 0;
};

}  // namespace nanovllm::grammar
