#include <algorithm>
#include <array>

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/parser.h"
#include "nanovllm/text/jinja/text.h"

namespace nanovllm::jinja {

namespace {

const std::map<std::string_view, Value>& constants() {
  static const std::map<std::string_view, Value> table = {{"true", true},   {"True", true},
                                                          {"false", false}, {"False", false},
                                                          {"none", None{}}, {"None", None{}}};
  return table;
}

Expr constant(Value value) {
  return [value = std::move(value)](Scope&) { return value; };
}

Values eval_all(const std::vector<Expr>& parts, Scope& scope) {
  Values values;
  values.reserve(parts.size());
  for (const Expr& part : parts) values.push_back(part(scope));
  return values;
}

}  // namespace

Expr Parser::parse_expression(bool with_condition) {
  const Level level(*this);
  return with_condition ? parse_conditional() : parse_logic(/*is_or=*/true);
}

Expr Parser::parse_conditional() {
  Expr node = parse_logic(/*is_or=*/true);
  while (is_name("if")) {
    const size_t offset = take().offset;
    Expr condition = parse_logic(/*is_or=*/true);
    Expr otherwise = skip_name("else") ? parse_expression() : nullptr;
    node = at(offset, [condition = std::move(condition), then = std::move(node),
                       otherwise = std::move(otherwise)](Scope& s) {
      if (truthy(condition(s))) return then(s);
      if (otherwise) return otherwise(s);
      return s.interpreter.undefined(
          "the inline if-expression evaluated to false and no else section was defined");
    });
  }
  return node;
}

/// `or` above `and`.
Expr Parser::parse_logic(bool is_or) {
  const auto next = [&] { return is_or ? parse_logic(false) : parse_not(); };
  Expr node = next();
  while (is_name(is_or ? "or" : "and")) {
    const size_t offset = take().offset;
    node = at(offset, [is_or, left = std::move(node), right = next()](Scope& s) {
      Value value = left(s);
      return truthy(value) == is_or ? value : right(s);
    });
  }
  return node;
}

Expr Parser::negation(size_t offset, Expr operand) {
  return at(offset,
            [operand = std::move(operand)](Scope& s) -> Value { return !truthy(operand(s)); });
}

Expr Parser::parse_not() {
  if (!is_name("not")) return parse_compare();
  const Level level(*this);
  const size_t offset = take().offset;
  return negation(offset, parse_not());  // NOLINT(*NewDeleteLeaks): none is there
}

/// The operator of a comparison, or nothing.
std::string Parser::take_comparison() {
  for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="})
    if (skip_op(op)) return std::string(op);
  const bool negated = is_name("not") && tokens_[pos_ + 1].is(Type::kName, "in");
  if (negated) take();
  return !skip_name("in") ? "" : negated ? "not in" : "in";
}

/// a < b < c is a < b and b < c.
Expr Parser::parse_compare() {
  Expr first = parse_arithmetic(0);
  const size_t offset = now().offset;
  std::vector<std::pair<std::string, Expr>> rest;
  for (std::string op = take_comparison(); !op.empty(); op = take_comparison())
    rest.emplace_back(op, parse_arithmetic(0));
  if (rest.empty()) return first;
  return at(offset, [first = std::move(first), rest = std::move(rest)](Scope& s) -> Value {
    Value left = first(s);
    for (const auto& [op, operand] : rest) {
      Value right = operand(s);
      if (!compare(op, left, right, s.interpreter.budget)) return false;
      left = std::move(right);
    }
    return true;
  });
}

/// Sums, then ~, then products, then powers; all of them from left to right.
Expr Parser::parse_arithmetic(size_t level) {
  static const std::array<std::vector<std::string_view>, 4> levels = {
      {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}};
  if (level == levels.size()) return parse_unary(/*with_filter=*/true);
  Expr node = parse_arithmetic(level + 1);
  while (now().type == Type::kOperator &&
         std::ranges::find(levels[level], now().text) != levels[level].end()) {
    const Token& op = take();
    Expr right = parse_arithmetic(level + 1);
    node = at(op.offset,
              [op = op.text, left = std::move(node), right = std::move(right)](Scope& s) -> Value {
                const Value a = left(s);
                const Value b = right(s);
                if (op != "~") return binary(op, a, b, s.interpreter.budget);
                Writer out(s.interpreter.budget);
                write(out, a);
                write(out, b);
                return out.take();
              });
  }
  return node;
}

Expr Parser::parse_unary(bool with_filter) {
  const size_t begin = pos_;
  Expr node;
  if (is_op("-") || is_op("+")) {
    const Level level(*this);
    const Token& op = take();
    Expr operand = parse_unary(false);
    node = at(op.offset, [minus = op.text == "-", operand = std::move(operand)](Scope& s) {
      const Value opposite = negative(operand(s));
      return minus ? opposite : negative(opposite);
    });
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node), begin);
  while (with_filter) {
    if (is_op("|")) node = parse_filters(std::move(node));
    else if (is_name("is")) node = parse_test(std::move(node));
    else if (is_op("(")) node = parse_postfix(std::move(node), begin);
    else break;
  }
  return node;
}

Expr Parser::parse_primary() {
  if (now().type == Type::kName) return parse_name();
  if (now().type == Type::kNumber) return constant(take().value);
  if (now().type == Type::kString) {
    std::string text;
    while (now().type == Type::kString) text += take().text;
    return constant(std::move(text));
  }
  if (skip_op("(")) {
    Expr node = parse_tuple(true, {}, /*in_parentheses=*/true);
    expect_op(")");
    return node;
  }
  return parse_list_or_dict();
}

Expr Parser::parse_name() {
  const std::string& name = take().text;
  if (const auto it = constants().find(name); it != constants().end()) return constant(it->second);
  const Symbol symbol = this->symbol(name);
  for (Macro* macro : macros_) {  // the ones around a nested macro or call block too
    if (name == "caller") macro->caller = symbol;
    if (name == "varargs") macro->varargs = symbol;
    if (name == "kwargs") macro->kwargs = symbol;
  }
  return [symbol](Scope& s) {
    const Value* found = s.find(symbol);
    if (found != nullptr) return *found;
    return s.interpreter.undefined("'{}' is undefined", s.interpreter.name(symbol));
  };
}

Expr Parser::parse_list_or_dict() {
  const bool is_dict = is_op("{");
  if (!is_dict && !is_op("[")) unexpected("an expression");
  const std::string_view end = is_dict ? "}" : "]";
  const size_t offset = take().offset;
  std::vector<Expr> parts;  // of a dictionary: key, value, key, value ...
  while (!is_op(end)) {
    parts.push_back(parse_expression());
    if (is_dict) {
      expect_op(":");
      parts.push_back(parse_expression());
    }
    if (!is_op(end)) expect_op(",");
  }
  take();
  return at(offset, [is_dict, parts = std::move(parts)](Scope& s) {
    Budget& budget = s.interpreter.budget;
    Values values = eval_all(parts, s);
    if (!is_dict) return make_list(std::move(values), budget);
    Dict dict;
    for (size_t i = 0; i < values.size(); i += 2)
      dict.set(std::move(values[i]), std::move(values[i + 1]), budget);
    return make_dict(std::move(dict), budget);
  });
}

bool Parser::ends_tuple(Names end_names) const {
  return now().type == Type::kVariableEnd || now().type == Type::kBlockEnd || is_op(")") ||
         is_op("=") || is_name(end_names);
}

Expr Parser::parse_tuple(bool with_condition, Names end_names, bool in_parentheses) {
  const size_t offset = now().offset;
  std::vector<Expr> parts;
  bool has_comma = false;
  while (!ends_tuple(end_names)) {
    parts.push_back(parse_expression(with_condition));
    if (!skip_op(",")) break;
    has_comma = true;
  }
  if (!has_comma && !parts.empty()) return std::move(parts[0]);
  if (!has_comma && !in_parentheses) unexpected("an expression");
  return at(offset, [parts = std::move(parts)](Scope& s) {
    return make_tuple(eval_all(parts, s), s.interpreter.budget);
  });
}

/// What may follow an expression that begins at token number `begin`: .name, [key] and (args).
Expr Parser::parse_postfix(Expr node, size_t begin) {
  for (;;) {
    const size_t offset = now().offset;
    if (skip_op(".")) {
      const bool is_index = now().type == Type::kNumber;
      const size_t at_name = now().offset;
      Value key = is_index ? take().value : Value(expect_name());
      node = at(is_index ? offset : at_name,
                [object = std::move(node), key = std::move(key)](Scope& s) {
                  return key.is_string() ? s.interpreter.attribute(object(s), key.string())
                                         : s.interpreter.item(object(s), key);
                });
    } else if (is_op("[")) {
      node = parse_subscript(std::move(node));
    } else if (is_op("(")) {
      const auto args = std::make_shared<CallArgs>(parse_args());
      last_call_ = {begin, pos_, args};
      node = at(offset, [callee = std::move(node), args](Scope& s) {
        const Value function = callee(s);
        return s.interpreter.call(function, args->eval(s));
      });
    } else {
      return node;
    }
  }
}

Expr Parser::parse_subscript(Expr node) {
  const size_t offset = take().offset;
  std::vector<Expr> parts;  // of a slice: start, stop, step
  do {
    const bool absent = is_op(":") || is_op("]");
    parts.push_back(absent ? constant(None{}) : parse_expression());
    if (absent && parts.size() == 1 && !is_op(":")) unexpected("an expression");
  } while (parts.size() < 3 && skip_op(":"));
  expect_op("]");
  return at(offset, [object = std::move(node), parts = std::move(parts)](Scope& s) {
    const Value from = object(s);
    Values keys = eval_all(parts, s);
    if (keys.size() == 1) return s.interpreter.item(from, keys[0]);
    keys.resize(3, None{});
    return slice(from, keys[0], keys[1], keys[2], s.interpreter.budget);
  });
}

CallArgs Parser::parse_args() {
  CallArgs args;
  const size_t offset = now().offset;
  expect_op("(");
  while (!is_op(")")) {
    Expr* slot;
    bool in_order = !args.star_star;
    if (skip_op("*")) {
      in_order = in_order && !args.star;
      slot = &args.star;
    } else if (skip_op("**")) {
      slot = &args.star_star;
    } else if (now().type == Type::kName && tokens_[pos_ + 1].is(Type::kOperator, "=")) {
      slot = &args.named.emplace_back(take().text, nullptr).second;
      take();
    } else {
      in_order = in_order && !args.star && args.named.empty();
      slot = &args.positional.emplace_back();
    }
    if (!in_order)
      throw TemplateError("arguments out of order: positional, named, *list, **dictionary", offset);
    *slot = parse_expression();
    if (!is_op(")")) expect_op(",");
  }
  take();
  return args;
}

Expr Parser::parse_filters(Expr node, bool inline_first) {
  while (std::exchange(inline_first, false) || skip_op("|"))
    node = parse_builtin(std::move(node), "|");
  return node;
}

/// A filter ("|") or test ("is "), from its name on. That there is none of that name is an error
/// of the rendering, as in Jinja2: it may never come there.
Expr Parser::parse_builtin(Expr operand, std::string_view kind) {
  const size_t offset = now().offset;
  std::string name = expect_name();
  while (skip_op(".")) name += "." + expect_name();
  const Builtin* builtin = find_builtin(kind, name);
  CallArgs args;
  const Type next = now().type;
  if (is_op("(")) {
    args = parse_args();
  } else if (kind == "is " &&
             ((next == Type::kName && !is_name({"else", "or", "and", "is"})) ||
              next == Type::kString || next == Type::kNumber || is_op("[") || is_op("{"))) {
    // One argument may stand without parentheses.
    const size_t begin = pos_;
    args.positional.push_back(parse_postfix(parse_primary(), begin));
  }
  return at(offset, [=, operand = std::move(operand), args = std::move(args)](Scope& s) {
    if (builtin == nullptr) raise("no {} named '{}'", kind == "|" ? "filter" : "test", name);
    return s.interpreter.call(*builtin, args.eval(s, {operand(s)}));
  });
}

Expr Parser::parse_test(Expr operand) {
  const size_t offset = take().offset;
  const bool negated = skip_name("not");
  Expr node = parse_builtin(std::move(operand), "is ");
  if (is_name("is")) throw TemplateError("tests with 'is' cannot be chained", now().offset);
  return negated ? negation(offset, std::move(node)) : node;
}

Target Parser::parse_target(bool with_namespace, Names end_names) {
  const Level level(*this);
  std::vector<Target> parts;
  bool has_comma = false;
  do {
    const size_t offset = now().offset;
    if (has_comma && ends_tuple(end_names)) break;
    if (skip_op("(")) {
      parts.push_back(parse_target(with_namespace));
      expect_op(")");
      continue;
    }
    const std::string name = expect_name();
    const bool is_attribute = with_namespace && skip_op(".");
    if (constants().contains(name) || (name == "loop" && loops_ > 0 && !is_attribute))
      throw TemplateError(fmt::format("cannot assign to {}", name), offset);
    const Symbol symbol = this->symbol(name);
    if (!is_attribute) {
      parts.push_back([symbol](Scope& s, Value value) { s.set(symbol, std::move(value)); });
      continue;
    }
    parts.push_back([symbol, attribute = expect_name()](Scope& s, Value value) {
      const Value* object = s.find(symbol);
      if (object == nullptr || object->space() == nullptr)
        raise("cannot assign attribute on non-namespace object");
      s.interpreter.budget.build(attribute.size());
      object->space()->set(attribute, std::move(value), s.interpreter.budget);
    });
  } while (skip_op(",") && (has_comma = true));
  if (!has_comma) return std::move(parts[0]);
  return [parts = std::move(parts)](Scope& s, const Value& value) {
    Values items = to_list(value, s.interpreter.budget);
    if (items.size() != parts.size())
      raise("{} values to unpack, expected {}", items.size(), parts.size());
    for (size_t i = 0; i < parts.size(); ++i) parts[i](s, std::move(items[i]));
  };
}

}  // namespace nanovllm::jinja
