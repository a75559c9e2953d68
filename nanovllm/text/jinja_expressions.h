#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/jinja_lexer.h"
#include "nanovllm/text/jinja_parser.h"

namespace nanovllm::jinja {

/// The tokens of a template and the expressions among them: recursive descent with the precedence
/// of Jinja2's grammar.
class ExpressionParser {
 protected:
  using Names = std::initializer_list<std::string_view>;
  using Kind = Expr::Kind;
  using Type = Token::Type;

  ExpressionParser(std::string_view source, std::vector<std::string>& names)
      : tokens_(tokenize(source)), names_(names) {}

  const Token& now() const { return tokens_[pos_]; }
  const Token& take();
  bool is_op(std::string_view op) const { return now().is(Type::kOperator, op); }
  bool is_name(std::string_view name) const { return now().is(Type::kName, name); }
  bool is_name(Names names) const;
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect(Type type, std::string_view what);
  std::string expect_name();
  [[noreturn]] void error(const std::string& what, uint32_t offset) const;
  [[noreturn]] void unexpected(std::string_view wanted) const;

  Symbol symbol(const std::string& name);

  ExprPtr parse_expression(bool with_condition = true);
  /// One expression, or a tuple where commas follow.
  ExprPtr parse_tuple(bool with_condition = true, Names end_names = {},
                      bool in_parentheses = false);
  /// `| name(args) | ...` behind `node`; in a filter block the first one stands without its "|".
  ExprPtr parse_filters(ExprPtr node, bool inline_first = false);
  /// What is assigned to: names and tuples of them, and attributes of a namespace where those are
  /// allowed.
  ExprPtr parse_target(bool with_namespace = false, Names end_names = {});

  /// Brackets within brackets, blocks within blocks, chains of operators: all of them become
  /// recursion.
  static constexpr int kMaxDepth = 200;
  struct Level {
    explicit Level(ExpressionParser& parser);
    ~Level() { --depth; }
    int& depth;
  };

  std::vector<Macro*> macros_;  // around the current token
  int loops_ = 0;               // around the current token, within its macro

 private:
  template <class... Operands>
  ExprPtr make(Kind kind, uint32_t offset, Operands... operands) {
    auto node = std::make_unique<Expr>(Expr{kind, offset});
    (add_operand(*node, std::move(operands)), ...);
    return node;
  }
  void add_operand(Expr& node, ExprPtr operand);
  void deepen(Expr& node, const ExprPtr& part) const;
  ExprPtr make_constant(uint32_t offset, Value value);
  ExprPtr make_name(uint32_t offset, const std::string& name);

  ExprPtr parse_conditional();
  ExprPtr parse_logic(bool is_or);
  ExprPtr parse_not();
  ExprPtr parse_compare();
  std::string take_comparison();
  ExprPtr parse_arithmetic(size_t level);
  ExprPtr parse_unary(bool with_filter);
  ExprPtr parse_primary();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr node);
  ExprPtr parse_test(ExprPtr operand);
  void parse_args(Expr& node);
  std::string parse_dotted_name();
  bool ends_tuple(Names end_names) const;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  std::vector<std::string>& names_;
  std::map<std::string, Symbol> symbols_;
  int depth_ = 0;
};

}  // namespace nanovllm::jinja
