#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/jinja/interpreter.h"

namespace nanovllm::jinja {

struct Token {
  enum class Type {
    kData,
    kVariableBegin,
    kVariableEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kNumber,
    kOperator,
    kEnd
  };
  Type type;
  size_t offset;     // where it begins in the source
  std::string text;  // of a string: with its escapes replaced
  Value value;       // of a number

  bool is(Type wanted, std::string_view written) const { return type == wanted && text == written; }
};

/// The tokens of a template, with the whitespace rules of trim_blocks and lstrip_blocks applied.
/// The last one is kEnd. Throws TemplateError.
std::vector<Token> tokenize(std::string_view source);

/// What the arguments of calls, filters and tests are written as: f(a, k=b, *c, **d).
struct CallArgs {
  std::vector<Expr> positional = {};
  std::vector<std::pair<std::string, Expr>> named = {};
  Expr star = {};       // empty where absent
  Expr star_star = {};  // empty where absent

  /// `first`: arguments before those that are written.
  Args eval(Scope& scope, Values first = {}) const;
};

/// Recursive descent with the precedence of Jinja2's grammar; jinja_expressions.cpp holds the
/// expressions, jinja_parser.cpp the rest. Throws TemplateError.
class Parser {
 public:
  using Names = std::initializer_list<std::string_view>;

  Parser(std::string_view source, std::vector<std::string>& names)
      : tokens_(tokenize(source)), names_(names) {}

  Body parse() { return parse_body({}); }

 private:
  using Type = Token::Type;

  /// Up to a tag named in `ends`, whose name is the next token; with none, up to the end of the
  /// template.
  Body parse_body(Names ends);

  const Token& now() const { return tokens_[pos_]; }
  const Token& take();
  bool is_op(std::string_view op) const { return now().is(Type::kOperator, op); }
  bool is_name(std::string_view name) const { return now().is(Type::kName, name); }
  bool is_name(Names names) const;
  bool skip_op(std::string_view op) { return is_op(op) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  void expect_op(std::string_view op);
  void expect(Type type, std::string_view what);
  std::string expect_name();
  [[noreturn]] void unexpected(std::string_view wanted) const;
  Symbol symbol(const std::string& name);

  /// `eval` as an expression or statement at a place: it counts against the limits, and errors get
  /// the place.
  template <class Eval>
  std::function<std::invoke_result_t<Eval, Scope&>(Scope&)> at(size_t offset, Eval eval);

  Expr parse_expression(bool with_condition = true);
  /// One expression, or a tuple where commas follow.
  Expr parse_tuple(bool with_condition = true, Names end_names = {}, bool in_parentheses = false);
  /// `| name(args) | ...` behind `node`; in a filter block the first one stands without its "|".
  Expr parse_filters(Expr node, bool inline_first = false);
  /// What is assigned to: names and tuples of them, and attributes of a namespace where allowed.
  Target parse_target(bool with_namespace = false, Names end_names = {});
  Expr parse_conditional();
  Expr parse_logic(bool is_or);
  Expr parse_not();
  Expr negation(size_t offset, Expr operand);
  Expr parse_compare();
  std::string take_comparison();
  Expr parse_arithmetic(size_t level);
  Expr parse_unary(bool with_filter);
  Expr parse_primary();
  Expr parse_name();
  Expr parse_list_or_dict();
  Expr parse_postfix(Expr node, size_t begin);
  Expr parse_subscript(Expr node);
  Expr parse_test(Expr operand);
  Expr parse_builtin(Expr operand, std::string_view kind);
  CallArgs parse_args();
  bool ends_tuple(Names end_names) const;

  Body parse_block(Names ends);
  Body parse_whole_block(std::string_view end);
  Body parse_statement();
  Body parse_if();
  Body parse_for();
  Body parse_set();
  Body parse_with();
  Body parse_filtered_block(const Target& target, std::string_view end);
  Body parse_macro();
  Body parse_call_block();
  void parse_parameters(Macro& macro);
  void parse_macro_body(Macro& macro, std::string_view end);

  /// Brackets within brackets, blocks within blocks: all of them become recursion.
  static constexpr int kMaxDepth = 200;
  struct Level {
    explicit Level(Parser& parser);
    ~Level() { --depth; }
    int& depth;
  };
  /// Of one tag: each holds others, and freeing the outermost recurses as well.
  static constexpr int kMaxNodes = 4000;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  std::vector<std::string>& names_;
  std::map<std::string, Symbol> symbols_ = {};
  int depth_ = 0;
  int num_nodes_ = 0;
  std::vector<Macro*> macros_ = {};  // around the current token
  int loops_ = 0;                    // around the current token, within its macro
  struct {
    size_t begin, end;  // tokens
    std::shared_ptr<CallArgs> args;
  } last_call_ = {};
};

template <class Eval>
std::function<std::invoke_result_t<Eval, Scope&>(Scope&)> Parser::at(size_t offset, Eval eval) {
  if (++num_nodes_ > kMaxNodes)
    throw TemplateError(fmt::format("a tag of more than {} operations", kMaxNodes), offset);
  return [offset, eval = std::move(eval)](Scope& scope) {
    try {
      const Interpreter::Level level(scope.interpreter);
      return eval(scope);
    } catch (TemplateError& error) {
      if (error.offset == TemplateError::kUnknown) error.offset = offset;
      throw;
    }
  };
}

}  // namespace nanovllm::jinja
