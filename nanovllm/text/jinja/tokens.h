#pragma once

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/jinja/interpreter.h"
#include "nanovllm/text/jinja/text.h"

namespace nanovllm::jinja {

struct Token {
  /// The delimiters of a tag, "{{", "}}", "{%" and "%}", are operators too.
  enum class Type { kData, kName, kString, kNumber, kOperator, kEnd };
  Type type;
  size_t offset;     // where it begins in the source
  std::string text;  // for a string, with its escapes replaced
  Value value = {};  // only for a number

  bool is(Type wanted, std::string_view written) const { return type == wanted && text == written; }
};

/// The tokens of a template, with the whitespace rules of trim_blocks and lstrip_blocks applied.
/// The last one is kEnd. Throws TemplateError.
std::vector<Token> tokenize(std::string_view source);

/// The base of the parsers of expressions and statements: a position in the tokens, the numbers of
/// names, and the offsets of errors.
class TokenReader {
 protected:
  using Type = Token::Type;
  using Names = std::initializer_list<std::string_view>;

  TokenReader(std::string_view source, std::vector<std::string>& names)
      : tokens_(tokenize(source)), names_(names) {
    for (const char* name : {"caller", "varargs", "kwargs", "loop"}) symbol(name);
  }

  const Token& now() const { return tokens_[pos_]; }
  const Token& take() {
    const Token& token = tokens_[pos_];
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return token;
  }

  bool is_op(std::string_view op) const { return now().is(Type::kOperator, op); }
  bool is_name(std::string_view name) const { return now().is(Type::kName, name); }
  bool is_name(Names names) const {
    return std::ranges::any_of(names, [&](std::string_view name) { return is_name(name); });
  }
  bool skip_op(std::string_view op) { return is_op(op) && (take(), true); }
  bool skip_name(std::string_view name) { return is_name(name) && (take(), true); }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
  }

  std::string expect_name() {
    if (now().type != Type::kName) unexpected("a name");
    return take().text;
  }

  [[noreturn]] void unexpected(std::string_view wanted) const {
    const bool at_end = now().type == Type::kEnd;
    raise("expected {}, got {}", wanted, at_end ? "the end of the template" : quote(now().text));
  }

  /// Calls `parse_item` for each item up to `end`. Commas separate the items; one more may follow.
  template <class ParseItem>
  void parse_list(std::string_view end, ParseItem parse_item) {
    while (!skip_op(end)) {
      parse_item();
      if (!is_op(end)) expect_op(",");
    }
  }

  /// The number of a variable's name.
  Symbol symbol(const std::string& name) {
    const auto [it, is_new] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
    if (is_new) names_.push_back(name);
    if (names_.size() > kMaxNames) raise("more than {} different variables", kMaxNames);
    return it->second;
  }

  /// Counts a level of nested brackets or blocks, because they all become recursion.
  [[nodiscard]] Level nested() { return {depth_, /*max_depth=*/200, "nested"}; }

  /// Makes `eval` a node of the tree: evaluating it counts as a step, and errors that it raises
  /// without an offset get this one.
  template <class Eval>
  std::function<std::invoke_result_t<Eval, Scope&>(Scope&)> at(size_t offset, Eval eval) {
    if (++num_nodes_ > kMaxNodes) raise_at(offset, "a tag of more than {} operations", kMaxNodes);
    return [offset, eval = std::move(eval)](Scope& scope) {
      try {
        const Level level = scope.interpreter.enter();
        return eval(scope);
      } catch (TemplateError& error) {
        if (error.offset == TemplateError::kUnknown) error.offset = offset;
        throw;
      }
    };
  }

  /// The most nodes of one tag. A node owns others, so freeing the outermost one is recursive.
  static constexpr int kMaxNodes = 4000;
  /// The most names of variables. It is low because a lookup compares variables one after another.
  static constexpr size_t kMaxNames = 1000;

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  std::vector<std::string>& names_;
  std::map<std::string, Symbol> symbols_ = {};
  int depth_ = 0;
  int num_nodes_ = 0;
};

}  // namespace nanovllm::jinja
