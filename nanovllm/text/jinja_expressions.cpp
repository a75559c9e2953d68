#include "nanovllm/text/jinja_expressions.h"

#include <algorithm>
#include <array>

#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_text.h"

namespace nanovllm::jinja {

namespace {

// Variables are looked up one after another.
constexpr size_t kMaxNames = 1000;

std::string describe(const Token& token) {
  return token.type == Token::Type::kEnd ? "the end of the template" : quote(token.text);
}

const std::map<std::string_view, Value>& constants() {
  static const std::map<std::string_view, Value> table = {{"true", true},   {"True", true},
                                                          {"false", false}, {"False", false},
                                                          {"none", None{}}, {"None", None{}}};
  return table;
}

}  // namespace

const Token& ExpressionParser::take() {
  const Token& token = tokens_[pos_];
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

bool ExpressionParser::is_name(Names names) const {
  return std::ranges::any_of(names, [&](std::string_view name) { return is_name(name); });
}

bool ExpressionParser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
}

void ExpressionParser::expect(Type type, std::string_view what) {
  if (now().type != type) unexpected(what);
  take();
}

std::string ExpressionParser::expect_name() {
  if (now().type != Type::kName) unexpected("a name");
  return take().text;
}

void ExpressionParser::error(const std::string& what, uint32_t offset) const {
  throw TemplateError(what, offset);
}

void ExpressionParser::unexpected(std::string_view wanted) const {
  error(fmt::format("expected {}, got {}", wanted, describe(now())), now().offset);
}

Symbol ExpressionParser::symbol(const std::string& name) {
  const auto [it, is_new] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
  if (is_new) names_.push_back(name);
  if (names_.size() > kMaxNames)
    error(fmt::format("more than {} different variables", kMaxNames), now().offset);
  return it->second;
}

ExpressionParser::Level::Level(ExpressionParser& parser) : depth(parser.depth_) {
  if (depth >= kMaxDepth)
    parser.error(fmt::format("nested deeper than {} levels", kMaxDepth), parser.now().offset);
  ++depth;
}

void ExpressionParser::add_operand(Expr& node, ExprPtr operand) {
  deepen(node, operand);
  node.operands.push_back(std::move(operand));
}

void ExpressionParser::deepen(Expr& node, const ExprPtr& part) const {
  if (part == nullptr) return;
  node.depth = std::max(node.depth, part->depth + 1);
  if (node.depth > kMaxDepth)
    error(fmt::format("an expression is nested deeper than {} levels", kMaxDepth), node.offset);
}

ExprPtr ExpressionParser::make_constant(uint32_t offset, Value value) {
  ExprPtr node = make(Kind::kConstant, offset);
  node->value = std::move(value);
  return node;
}

ExprPtr ExpressionParser::make_name(uint32_t offset, const std::string& name) {
  ExprPtr node = make(Kind::kName, offset);
  node->symbol = symbol(name);
  for (Macro* macro : macros_) {  // the ones around a nested macro or call block too
    if (name == "caller") macro->caller = node->symbol;
    if (name == "varargs") macro->varargs = node->symbol;
    if (name == "kwargs") macro->kwargs = node->symbol;
  }
  return node;
}

ExprPtr ExpressionParser::parse_expression(bool with_condition) {
  const Level level(*this);
  return with_condition ? parse_conditional() : parse_logic(/*is_or=*/true);
}

ExprPtr ExpressionParser::parse_conditional() {
  ExprPtr node = parse_logic(/*is_or=*/true);
  while (is_name("if")) {
    const uint32_t offset = take().offset;
    ExprPtr condition = parse_logic(/*is_or=*/true);
    ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
    node = make(Kind::kConditional, offset, std::move(condition), std::move(node),
                std::move(otherwise));
  }
  return node;
}

/// `or` above `and`.
ExprPtr ExpressionParser::parse_logic(bool is_or) {
  const auto next = [&] { return is_or ? parse_logic(false) : parse_not(); };
  ExprPtr left = next();
  while (is_name(is_or ? "or" : "and")) {
    const uint32_t offset = take().offset;
    left = make(is_or ? Kind::kOr : Kind::kAnd, offset, std::move(left), next());
  }
  return left;
}

ExprPtr ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Level level(*this);
  const uint32_t offset = take().offset;
  return make(Kind::kNot, offset, parse_not());
}

/// The operator of a comparison, or nothing.
std::string ExpressionParser::take_comparison() {
  for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="})
    if (skip_op(op)) return std::string(op);
  if (skip_name("in")) return "in";
  if (!is_name("not") || !tokens_[pos_ + 1].is(Type::kName, "in")) return "";
  take();
  take();
  return "not in";
}

ExprPtr ExpressionParser::parse_compare() {
  ExprPtr left = parse_arithmetic(0);
  const uint32_t offset = now().offset;
  std::string op = take_comparison();
  if (op.empty()) return left;
  ExprPtr node = make(Kind::kCompare, offset, std::move(left));
  for (; !op.empty(); op = take_comparison()) {
    node->ops.push_back(op);
    add_operand(*node, parse_arithmetic(0));
  }
  return node;
}

/// Sums, then ~, then products, then powers; all of them from left to right.
ExprPtr ExpressionParser::parse_arithmetic(size_t level) {
  static const std::array<std::vector<std::string_view>, 4> levels = {
      {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}};
  if (level == levels.size()) return parse_unary(/*with_filter=*/true);
  ExprPtr left = parse_arithmetic(level + 1);
  while (now().type == Type::kOperator &&
         std::ranges::find(levels[level], now().text) != levels[level].end()) {
    const Token& op = take();
    if (op.text == "~" && left->kind == Kind::kConcat) {
      add_operand(*left, parse_arithmetic(level + 1));
      continue;
    }
    left = make(op.text == "~" ? Kind::kConcat : Kind::kBinary, op.offset, std::move(left),
                parse_arithmetic(level + 1));
    left->ops.push_back(op.text);
  }
  return left;
}

ExprPtr ExpressionParser::parse_unary(bool with_filter) {
  ExprPtr node;
  if (is_op("-") || is_op("+")) {
    const Level level(*this);
    const Token& op = take();
    node = make(Kind::kNegative, op.offset, parse_unary(false));
    if (op.text == "+") node = make(Kind::kNegative, op.offset, std::move(node));
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  while (with_filter) {
    if (is_op("|")) node = parse_filters(std::move(node));
    else if (is_name("is")) node = parse_test(std::move(node));
    else if (is_op("(")) node = parse_postfix(std::move(node));
    else break;
  }
  return node;
}

ExprPtr ExpressionParser::parse_primary() {
  const Token& token = now();
  const uint32_t offset = token.offset;
  if (token.type == Type::kName) {
    const auto constant = constants().find(take().text);
    return constant != constants().end() ? make_constant(offset, constant->second)
                                         : make_name(offset, token.text);
  }
  if (token.type == Type::kInteger || token.type == Type::kFloat)
    return make_constant(offset, take().value);
  if (token.type == Type::kString) {
    std::string text;
    while (now().type == Type::kString) text += take().text;
    return make_constant(offset, std::move(text));
  }
  if (skip_op("(")) {
    ExprPtr node = parse_tuple(true, {}, /*in_parentheses=*/true);
    expect_op(")");
    return node;
  }
  const bool is_dict = is_op("{");
  if (!is_dict && !is_op("[")) unexpected("an expression");
  const std::string_view end = is_dict ? "}" : "]";
  take();
  ExprPtr node = make(is_dict ? Kind::kDict : Kind::kList, offset);
  while (!is_op(end)) {
    add_operand(*node, parse_expression());
    if (is_dict) {
      expect_op(":");
      add_operand(*node, parse_expression());
    }
    if (!is_op(end)) expect_op(",");
  }
  take();
  return node;
}

bool ExpressionParser::ends_tuple(Names end_names) const {
  return now().type == Type::kVariableEnd || now().type == Type::kBlockEnd || is_op(")") ||
         is_op("=") || is_name(end_names);
}

ExprPtr ExpressionParser::parse_tuple(bool with_condition, Names end_names, bool in_parentheses) {
  ExprPtr tuple = make(Kind::kTuple, now().offset);
  bool has_comma = false;
  while (!ends_tuple(end_names)) {
    add_operand(*tuple, parse_expression(with_condition));
    if (!skip_op(",")) break;
    has_comma = true;
  }
  if (!has_comma && !tuple->operands.empty()) return std::move(tuple->operands[0]);
  if (!has_comma && !in_parentheses) unexpected("an expression");
  return tuple;
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr node) {
  for (;;) {
    const uint32_t offset = now().offset;
    if (skip_op(".")) {
      const Token& token = now();
      if (token.type == Type::kInteger) {
        node = make(Kind::kItem, offset, std::move(node), make_constant(offset, take().value));
      } else {
        node = make(Kind::kAttribute, token.offset, std::move(node));
        node->value = expect_name();
      }
    } else if (is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_op("(")) {
      node = make(Kind::kCall, offset, std::move(node));
      parse_args(*node);
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr node) {
  const uint32_t offset = take().offset;
  const auto part = [&]() -> ExprPtr {
    return is_op(":") || is_op("]") ? nullptr : parse_expression();
  };
  ExprPtr first = part();
  if (skip_op(":")) {
    ExprPtr stop = part();
    ExprPtr step = skip_op(":") ? part() : nullptr;
    node = make(Kind::kSlice, offset, std::move(node), std::move(first), std::move(stop),
                std::move(step));
  } else {
    if (first == nullptr) unexpected("an expression");
    node = make(Kind::kItem, offset, std::move(node), std::move(first));
  }
  expect_op("]");
  return node;
}

void ExpressionParser::parse_args(Expr& node) {
  CallArgs& args = node.args;
  const uint32_t offset = now().offset;
  expect_op("(");
  while (!is_op(")")) {
    ExprPtr* slot;
    bool in_order = args.star_star == nullptr;
    if (skip_op("*")) {
      in_order = in_order && args.star == nullptr;
      slot = &args.star;
    } else if (skip_op("**")) {
      slot = &args.star_star;
    } else if (now().type == Type::kName && tokens_[pos_ + 1].is(Type::kOperator, "=")) {
      slot = &args.named.emplace_back(take().text, nullptr).second;
      take();
    } else {
      in_order = in_order && args.star == nullptr && args.named.empty();
      slot = &args.positional.emplace_back();
    }
    if (!in_order) error("arguments out of order: positional, named, *list, **dictionary", offset);
    *slot = parse_expression();
    deepen(node, *slot);
    if (!is_op(")")) expect_op(",");
  }
  take();
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect_name();
  while (skip_op(".")) name += "." + expect_name();
  return name;
}

ExprPtr ExpressionParser::parse_filters(ExprPtr node, bool inline_first) {
  while (std::exchange(inline_first, false) || skip_op("|")) {
    node = make(Kind::kFilter, now().offset, std::move(node));
    const std::string name = parse_dotted_name();
    node->value = name;
    node->builtin = find_filter(name);
    if (is_op("(")) parse_args(*node);
  }
  return node;
}

ExprPtr ExpressionParser::parse_test(ExprPtr operand) {
  const uint32_t offset = take().offset;
  const bool negated = skip_name("not");
  ExprPtr node = make(Kind::kTest, now().offset, std::move(operand));
  const std::string name = parse_dotted_name();
  node->value = name;
  node->builtin = find_test(name);
  const Type next = now().type;
  if (is_op("(")) {
    parse_args(*node);
  } else if (is_name("is")) {
    error("tests with 'is' cannot be chained", now().offset);
  } else if ((next == Type::kName && !is_name({"else", "or", "and"})) || next == Type::kString ||
             next == Type::kInteger || next == Type::kFloat || is_op("[") || is_op("{")) {
    // One argument may stand without parentheses.
    node->args.positional.push_back(parse_postfix(parse_primary()));
    deepen(*node, node->args.positional.back());
  }
  return negated ? make(Kind::kNot, offset, std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::parse_target(bool with_namespace, Names end_names) {
  const Level level(*this);
  ExprPtr tuple = make(Kind::kTuple, now().offset);
  bool has_comma = false;
  do {
    const uint32_t offset = now().offset;
    if (has_comma && ends_tuple(end_names)) break;
    if (skip_op("(")) {
      add_operand(*tuple, parse_target(with_namespace));
      expect_op(")");
      continue;
    }
    const std::string name = expect_name();
    const bool is_attribute = with_namespace && skip_op(".");
    if (constants().contains(name) || (name == "loop" && loops_ > 0 && !is_attribute))
      error(fmt::format("cannot assign to {}", name), offset);
    add_operand(*tuple, make(is_attribute ? Kind::kNamespaceRef : Kind::kName, offset));
    tuple->operands.back()->symbol = symbol(name);
    if (is_attribute) tuple->operands.back()->value = expect_name();
  } while (skip_op(",") && (has_comma = true));
  return has_comma ? std::move(tuple) : std::move(tuple->operands[0]);
}

}  // namespace nanovllm::jinja
