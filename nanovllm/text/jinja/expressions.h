#pragma once

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/tokens.h"

namespace nanovllm::jinja {

inline const std::map<std::string_view, Value>& constants() {
  static const std::map<std::string_view, Value> table = {{"true", true},   {"True", true},
                                                          {"false", false}, {"False", false},
                                                          {"none", None{}}, {"None", None{}}};
  return table;
}

struct BinaryOperator {
  std::string_view text;
  int level;  // a higher one binds tighter
};
// All binary operators group from left to right. Level 2 belongs to `not` and the comparisons.
inline constexpr BinaryOperator kBinaryOperators[] = {{"or", 0}, {"and", 1}, {"+", 3}, {"-", 3},
                                                      {"~", 4},  {"*", 5},   {"/", 5}, {"//", 5},
                                                      {"%", 5},  {"**", 6}};
inline constexpr int kCompareLevel = 2, kUnaryLevel = 7;

inline Expr constant(Value value) {
  return [value = std::move(value)](Scope&) { return value; };
}

inline Values eval_all(const std::vector<Expr>& parts, Scope& scope) {
  Values values;
  values.reserve(parts.size());
  for (const Expr& part : parts) values.push_back(part(scope));
  return values;
}

/// The arguments of a call, a filter or a test: f(a, k=b, *c, **d).
struct CallArgs {
  enum class Kind { kPositional, kNamed, kList, kDict };
  struct Part {
    Kind kind;
    Value name;  // only for kNamed
    Expr value;
  };
  std::vector<Part> parts = {};

  /// Evaluates the arguments. `first` are arguments that precede the written ones.
  Args eval(Scope& scope, Values first = {}) const {
    Budget& budget = scope.interpreter.budget;
    Args args{std::move(first)};
    for (const auto& [kind, name, expr] : parts) {
      Value value = expr(scope);
      if (kind == Kind::kPositional) {
        args.positional.push_back(std::move(value));
      } else if (kind == Kind::kNamed) {
        args.named.set(name, std::move(value), budget);
      } else if (kind == Kind::kList) {
        for (Value& item : to_list(value, budget)) args.positional.push_back(std::move(item));
      } else {
        if (value.dict() == nullptr)
          raise("argument after ** must be a mapping, not {}", value.type_name());
        for (const auto& [key, item] : value.dict()->items) {
          if (!key.is_string()) raise("keywords must be strings");
          args.named.set(key, item, budget);
        }
      }
    }
    return args;
  }
};

/// Parses expressions, filters, tests and the targets of assignments, by recursive descent with
/// the precedence of Jinja2's grammar.
class ExpressionParser : protected TokenReader {
 protected:
  using TokenReader::TokenReader;

  Expr parse_expression(bool with_condition = true) {
    const Level level = nested();
    Expr node = parse_binary(0);
    while (with_condition && is_name("if")) {
      const size_t offset = take().offset;
      Expr condition = parse_binary(0);
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

  bool is_binary(int level) const {
    return std::ranges::any_of(kBinaryOperators, [&](const BinaryOperator& op) {
      return op.level == level && (is_op(op.text) || is_name(op.text));
    });
  }

  Expr parse_binary(int level) {
    if (level == kCompareLevel) return parse_compare();
    if (level == kUnaryLevel) return parse_unary(/*with_filter=*/true);
    Expr node = parse_binary(level + 1);
    while (is_binary(level)) {
      const Token& op = take();
      Expr right = parse_binary(level + 1);
      node =
          at(op.offset, [op = op.text, left = std::move(node), right = std::move(right)](Scope& s) {
            Value a = left(s);
            if (op == "or" || op == "and") return truthy(a) == (op == "or") ? a : right(s);
            return binary(op, a, right(s), s.interpreter.budget);
          });
    }
    return node;
  }

  Expr negation(size_t offset, Expr operand) {
    return at(offset,
              [operand = std::move(operand)](Scope& s) -> Value { return !truthy(operand(s)); });
  }

  /// Takes the operator of a comparison. Returns an empty text if there is none.
  std::string take_comparison() {
    for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="})
      if (skip_op(op)) return std::string(op);
    const bool negated = is_name("not") && tokens_[pos_ + 1].is(Type::kName, "in");
    if (negated) take();
    return !skip_name("in") ? "" : negated ? "not in" : "in";
  }

  /// A comparison, which may have `not` before it. `a < b < c` means `a < b and b < c`.
  Expr parse_compare() {
    if (is_name("not")) {
      const Level level = nested();
      const size_t offset = take().offset;
      return negation(offset, parse_compare());  // NOLINT(*NewDeleteLeaks): none is there
    }
    Expr first = parse_binary(kCompareLevel + 1);
    const size_t offset = now().offset;
    std::vector<std::pair<std::string, Expr>> rest;
    for (std::string op = take_comparison(); !op.empty(); op = take_comparison())
      rest.emplace_back(op, parse_binary(kCompareLevel + 1));
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

  Expr parse_unary(bool with_filter) {
    Expr node;
    if (is_op("-") || is_op("+")) {
      const Level level = nested();
      const Token& op = take();
      Expr operand = parse_unary(/*with_filter=*/false);
      node = at(op.offset, [minus = op.text == "-", operand = std::move(operand)](Scope& s) {
        const Value opposite = negative(operand(s));
        return minus ? opposite : negative(opposite);
      });
    } else {
      node = parse_primary();
    }
    node = parse_postfix(std::move(node));
    while (with_filter) {
      if (skip_op("|")) node = parse_builtin(std::move(node), "filter");
      else if (is_name("is")) node = parse_test(std::move(node));
      else if (is_op("(")) node = parse_postfix(std::move(node));
      else break;
    }
    return node;
  }

  Expr parse_primary() {
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

  Expr parse_name() {
    const std::string& name = take().text;
    if (const auto it = constants().find(name); it != constants().end())
      return constant(it->second);
    const Symbol symbol = this->symbol(name);
    if (symbol <= kKwargs)  // counts for every enclosing macro: a call block reads its macro's
      for (Macro* macro : macros_) macro->mentions[symbol] = true;
    return [symbol](Scope& s) {
      const Value* found = s.find(symbol);
      if (found != nullptr) return *found;
      return s.interpreter.undefined("'{}' is undefined", s.interpreter.name(symbol));
    };
  }

  Expr parse_list_or_dict() {
    const bool is_dict = is_op("{");
    if (!is_dict && !is_op("[")) unexpected("an expression");
    const size_t offset = take().offset;
    std::vector<Expr> parts;  // for a dictionary: key, value, key, value ...
    parse_list(is_dict ? "}" : "]", [&] {
      parts.push_back(parse_expression());
      if (!is_dict) return;
      expect_op(":");
      parts.push_back(parse_expression());
    });
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

  bool ends_tuple(Names end_names) const {
    return is_op("}}") || is_op("%}") || is_op(")") || is_name(end_names);
  }

  /// One expression, or a tuple if commas follow.
  Expr parse_tuple(bool with_condition = true, Names end_names = {}, bool in_parentheses = false) {
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

  /// Parses the parts that may follow an expression: .name, [key] and, if `with_call`, (args).
  Expr parse_postfix(Expr node, bool with_call = true) {
    for (;;) {
      const size_t offset = now().offset;
      if (skip_op(".")) {
        const bool is_index = now().type == Type::kNumber;
        const size_t place = is_index ? offset : now().offset;
        Value key = is_index ? take().value : Value(expect_name());
        node = at(place, [object = std::move(node), key = std::move(key)](Scope& s) {
          return key.is_string() ? s.interpreter.attribute(object(s), key)
                                 : s.interpreter.item(object(s), key);
        });
      } else if (is_op("[")) {
        node = parse_subscript(std::move(node));
      } else if (with_call && is_op("(")) {
        node = call(offset, std::move(node), parse_args());
      } else {
        return node;
      }
    }
  }

  Expr parse_subscript(Expr node) {
    const size_t offset = take().offset;
    std::vector<Expr> parts;  // for a slice: start, stop, step
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

  CallArgs parse_args() {
    using Kind = CallArgs::Kind;
    CallArgs args;
    expect_op("(");
    parse_list(")", [&] {
      const bool is_named = now().type == Type::kName && tokens_[pos_ + 1].is(Type::kOperator, "=");
      const Kind kind = skip_op("*")    ? Kind::kList
                        : skip_op("**") ? Kind::kDict
                        : is_named      ? Kind::kNamed
                                        : Kind::kPositional;
      if (kind == Kind::kPositional && !args.parts.empty() && args.parts.back().kind != kind)
        raise("a positional argument after a named one");
      Value name = is_named ? Value(take().text) : Value();
      if (is_named) take();
      args.parts.push_back({kind, std::move(name), parse_expression()});
    });
    return args;
  }

  Expr call(size_t offset, Expr callee, CallArgs args) {
    return at(offset, [callee = std::move(callee), args = std::move(args)](Scope& s) {
      const Value function = callee(s);
      return s.interpreter.call(function, args.eval(s));
    });
  }

  /// A filter or test, beginning with its name. An unknown name is an error only when it is
  /// evaluated, as in Jinja2, because the template may never evaluate it.
  Expr parse_builtin(Expr operand, std::string_view kind) {
    const size_t offset = now().offset;
    std::string name = expect_name();
    while (skip_op(".")) name += "." + expect_name();
    const Builtin* builtin = find_builtin(kind, name);
    CallArgs args;
    const Type next = now().type;
    if (is_op("(")) {
      args = parse_args();
    } else if (kind == "test" &&
               ((next == Type::kName && !is_name({"else", "or", "and", "is"})) ||
                next == Type::kString || next == Type::kNumber || is_op("[") || is_op("{"))) {
      // A single argument needs no parentheses.
      args.parts.push_back({CallArgs::Kind::kPositional, {}, parse_postfix(parse_primary())});
    }
    return at(offset, [=, operand = std::move(operand), args = std::move(args)](Scope& s) {
      if (builtin == nullptr) raise("no {} named '{}'", kind, name);
      return s.interpreter.call(*builtin, args.eval(s, {operand(s)}));
    });
  }

  Expr parse_test(Expr operand) {
    const size_t offset = take().offset;
    const bool negated = skip_name("not");
    Expr node = parse_builtin(std::move(operand), "test");
    if (is_name("is")) raise_at(now().offset, "tests with 'is' cannot be chained");
    return negated ? negation(offset, std::move(node)) : node;
  }

  /// The target of an assignment: names, tuples of names and, if `with_namespace`, attributes of a
  /// namespace.
  Target parse_target(bool with_namespace = false, Names end_names = {}) {
    const Level level = nested();
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
      if (constants().contains(name) || (name == "loop" && num_loops_ > 0 && !is_attribute))
        raise_at(offset, "cannot assign to {}", name);
      const Symbol symbol = this->symbol(name);
      if (!is_attribute) {
        parts.push_back([symbol](Scope& s, Value value) { s.set(symbol, std::move(value)); });
        continue;
      }
      parts.push_back([symbol, attribute = Value(expect_name())](Scope& s, Value value) {
        const Value* object = s.find(symbol);
        if (object == nullptr || object->space() == nullptr)
          raise("cannot assign attribute on non-namespace object");
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

  std::vector<Macro*> macros_ = {};  // the macros that enclose the current token
  int num_loops_ = 0;                // loops that enclose the current token, within its macro
};

}  // namespace nanovllm::jinja
