#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/text/grammar/code_points.h"
#include "nanovllm/text/grammar/expressions.h"

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
    size_t begin = 0, end = 0;  ///< the body's tokens
    Expr expr = Expr::kNothing;
    // Only Lark has these.
    bool lazy = false;
    size_t suffix = 0;           ///< the token of a text that ends a lazy rule, if not 0
    std::string_view pattern{};  ///< of an imported terminal
    enum { kUnread, kOpen, kRead } state = kUnread;  ///< of a terminal
  };

  GrammarParser(Expressions& e, Syntax syntax, std::string_view text, const std::string& where);
  ~GrammarParser() = default;

  template <class... Args>
  [[noreturn]] void error(uint32_t line, fmt::format_string<Args...> format, Args&&... args) const {
    nanovllm::fail("{}: line {}: {}", where_, line,
                   fmt::format(format, std::forward<Args>(args)...));
  }
  /// The text of a token for a message.
  static std::string shown(std::string_view text) { return printable(Json(text)); }

  /// A token of the body that is being read; kEnd after its last one.
  const Token& peek(size_t ahead = 0) const {
    return at_ + ahead < end_ ? tokens_[at_ + ahead] : end_token_;
  }
  bool next_is(std::string_view symbol, size_t ahead = 0) const {
    return peek(ahead).kind == Kind::kSymbol && peek(ahead).text == symbol;
  }
  bool take(std::string_view symbol);
  void expect(std::string_view symbol);
  const Token& expect(Kind kind, const char* what);
  [[noreturn]] void unexpected(const std::string& expected) const;

  /// Adds a rule, whose body is read later.
  Rule& add_rule(const Token& name, size_t begin, size_t end);
  Rule& find_rule(const Token& name);
  Expr start_rule(std::string_view name);
  /// The expression of these tokens.
  Expr read(size_t begin, size_t end);

  Expr alternatives();
  Expr sequence();
  /// The alternatives in parentheses or brackets.
  Expr group(std::string_view close);
  /// One alternative.
  virtual Expr alternative() { return sequence(); }
  /// An item without its repetition, or nothing where a sequence ends.
  virtual std::optional<Expr> item() = 0;

  /// Takes a character, which may be an escape sequence, from the start of a literal.
  char32_t next_character(std::string_view& literal, uint32_t line) const;
  /// The text between the quotes.
  std::string unescaped(std::string_view literal, uint32_t line) const;

  Expressions& e_;
  const Syntax syntax_;
  const std::string where_;
  std::vector<Token> tokens_;
  std::vector<Rule> rules_;
  std::unordered_map<std::string_view, size_t> rule_names_;
  size_t at_ = 0, end_ = 0;

 private:
  void add_tokens(std::string_view text);
  size_t end_of_literal(std::string_view text, size_t begin, char close, uint32_t line) const;
  Expr repeated(Expr part);
  uint32_t number();

  Token end_token_{Kind::kEnd, false, 1, {}};
  int nesting_ = 0;
};

}  // namespace nanovllm::grammar
