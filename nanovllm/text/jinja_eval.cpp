#include <algorithm>

#include "nanovllm/text/jinja_interpreter.h"
#include "nanovllm/text/jinja_text.h"

// Expressions: operators, calls, attributes.
namespace nanovllm::jinja {

namespace {

bool is_indexable(const Value& v) {
  return v.is_string() || (v.sequence() != nullptr && v.sequence()->indexable());
}

}  // namespace

Value Interpreter::eval(const Expr& expr, Scope& scope) {
  using enum Expr::Kind;
  const Level level(*this);
  budget_.step();
  at_ = expr.offset;
  const auto operand = [&](size_t i) { return eval(*expr.operands[i], scope); };
  const auto operands = [&] {
    Values values;
    values.reserve(expr.operands.size());
    for (const ExprPtr& e : expr.operands) values.push_back(eval(*e, scope));
    return values;
  };
  switch (expr.kind) {
    case kConstant:
      return expr.value;
    case kNamespaceRef:
      break;
    case kName: {
      const Value* found = scope.find(expr.symbol);
      if (found != nullptr) return *found;
      return Value::undefined(
          fmt::format("'{}' is undefined", template_.names()[static_cast<size_t>(expr.symbol)]));
    }
    case kTuple:
      return make_tuple(operands(), budget_);
    case kList:
      return make_list(operands(), budget_);
    case kDict: {
      Values values = operands();
      Dict dict;
      for (size_t i = 0; i < values.size(); i += 2)
        dict.set(std::move(values[i]), std::move(values[i + 1]), budget_);
      return make_dict(std::move(dict), budget_);
    }
    case kAttribute: {
      const Value object = operand(0);
      at_ = expr.offset;
      return attribute(object, expr.value.string());
    }
    case kItem: {
      const Value object = operand(0);
      const Value key = operand(1);
      at_ = expr.offset;
      return item(object, key);
    }
    case kSlice:
      return eval_slice(expr, scope);
    case kCall: {
      const Value callee = operand(0);
      Args args = eval_args(expr.args, scope);
      at_ = expr.offset;
      return call(callee, std::move(args));
    }
    case kFilter:
    case kTest:
      return eval_builtin(expr, scope);
    case kNot:
      return !truthy(operand(0));
    case kNegative:
      return negative(operand(0));
    case kBinary: {
      const Value a = operand(0);
      const Value b = operand(1);
      at_ = expr.offset;
      return binary(expr.ops[0], a, b, *this);
    }
    case kCompare:
      return eval_compare(expr, scope);
    case kAnd: {
      Value left = operand(0);
      return truthy(left) ? operand(1) : left;
    }
    case kOr: {
      Value left = operand(0);
      return truthy(left) ? left : operand(1);
    }
    case kConcat: {
      Writer out(budget_);
      for (const ExprPtr& e : expr.operands) write(out, eval(*e, scope));
      return out.take();
    }
    case kConditional:
      if (truthy(operand(0))) return operand(1);
      if (expr.operands[2] != nullptr) return operand(2);
      return Value::undefined(
          "the inline if-expression evaluated to false and no else section was defined");
  }
  return {};
}

Value Interpreter::eval_slice(const Expr& expr, Scope& scope) {
  const Value object = eval(*expr.operands[0], scope);
  Value parts[3];
  for (size_t i = 0; i < 3; ++i)
    parts[i] = expr.operands[i + 1] == nullptr ? Value(None{}) : eval(*expr.operands[i + 1], scope);
  at_ = expr.offset;
  return slice(object, parts[0], parts[1], parts[2], budget_);
}

Value Interpreter::eval_compare(const Expr& expr, Scope& scope) {
  Value left = eval(*expr.operands[0], scope);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.operands[i + 1], scope);
    at_ = expr.offset;
    const std::string& op = expr.ops[i];
    bool holds;
    if (op == "==" || op == "!=") {
      holds = equal(left, right, budget_) == (op == "==");
    } else if (op == "in" || op == "not in") {
      holds = contains(right, left, budget_) == (op == "in");
    } else {
      const int order = compare(left, right, op, budget_);
      holds = order == 0 ? op.size() == 2 : order == (op[0] == '<' ? -1 : 1);
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::eval_builtin(const Expr& expr, Scope& scope) {
  Values first;
  first.push_back(expr.operands[0] == nullptr ? *block_input_ : eval(*expr.operands[0], scope));
  Args args = eval_args(expr.args, scope, std::move(first));
  at_ = expr.offset;
  if (expr.builtin == nullptr)
    raise("no {} named {}", expr.kind == Expr::Kind::kFilter ? "filter" : "test",
          quote(expr.value.string()));
  return call(*expr.builtin, std::move(args));
}

Args Interpreter::eval_args(const CallArgs& written, Scope& scope, Values first) {
  Args args{std::move(first), {}};
  for (const ExprPtr& e : written.positional) args.positional.push_back(eval(*e, scope));
  for (const auto& [name, e] : written.named) args.named.emplace_back(name, eval(*e, scope));
  if (written.star != nullptr)
    for (Value& v : to_list(eval(*written.star, scope), budget_))
      args.positional.push_back(std::move(v));
  if (written.star_star != nullptr) {
    const Value v = eval(*written.star_star, scope);
    if (v.dict() == nullptr) raise("argument after ** must be a mapping, not {}", v.type_name());
    for (const auto& [key, value] : v.dict()->items) {
      if (!key.is_string()) raise("keywords must be strings");
      args.named.emplace_back(key.string(), value);
    }
  }
  return args;
}

Value Interpreter::call(const Builtin& builtin, Args args) {
  budget_.step(4 + static_cast<int64_t>(args.named.size()));
  Bound bound(builtin, *this, budget_, std::move(args));
  return builtin.call(bound);
}

Value Interpreter::call(const Value& callee, Args args) {
  if (Loop* loop = callee.loop()) {
    if (!loop->stmt->recursive)
      raise("the loop must have the 'recursive' marker to be called recursively");
    if (args.positional.size() != 1 || !args.named.empty()) raise("loop() takes one argument");
    const Level level(*this);
    Writer out(budget_);
    Writer* outer = std::exchange(out_, &out);
    run_loop(*loop->stmt, *loop->outer, to_list(args.positional[0], budget_), loop->depth + 1);
    out_ = outer;
    return out.take();
  }
  const Function* function = callee.defined().function();
  if (function == nullptr) raise("'{}' object is not callable", callee.type_name());
  if (function->macro != nullptr) return call_macro(*function, std::move(args));
  if (!function->self.is_undefined())
    args.positional.insert(args.positional.begin(), function->self);
  return call(*function->builtin, std::move(args));
}

Value Interpreter::call_macro(const Function& function, Args args) {
  const Macro& macro = *function.macro;
  const auto scope = std::make_shared<Scope>(function.scope);
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    for (auto it = args.named.begin(); it != args.named.end(); ++it) {
      if (it->first != name) continue;
      Value value = std::move(it->second);
      args.named.erase(it);
      return value;
    }
    return std::nullopt;
  };
  const size_t num_parameters = macro.parameters.size();
  budget_.step(static_cast<int64_t>(num_parameters * args.named.size() / 16));
  const uint32_t at = at_;
  for (size_t i = 0; i < num_parameters; ++i) {
    const auto& [name, symbol, otherwise] = macro.parameters[i];
    if (i < args.positional.size()) scope->set(symbol, args.positional[i]);
    else if (std::optional<Value> value = take_named(name)) scope->set(symbol, std::move(*value));
    else if (otherwise != nullptr) scope->set(symbol, eval(*otherwise, *scope));
    else scope->set(symbol, Value::undefined(fmt::format("parameter '{}' was not provided", name)));
  }
  at_ = at;
  if (macro.caller >= 0)
    scope->set(macro.caller, take_named("caller").value_or(Value::undefined("No caller defined")));
  if (macro.kwargs >= 0) {
    Dict rest;
    for (auto& [name, value] : args.named) rest.set(name, std::move(value), budget_);
    scope->set(macro.kwargs, make_dict(std::move(rest), budget_));
  } else if (!args.named.empty()) {
    raise("macro '{}' takes no keyword argument '{}'", macro.name, args.named[0].first);
  }
  if (macro.varargs >= 0) {
    Values& all = args.positional;
    const auto num_taken = static_cast<ptrdiff_t>(std::min(num_parameters, all.size()));
    all.erase(all.begin(), all.begin() + num_taken);
    scope->set(macro.varargs, make_tuple(std::move(all), budget_));
  } else if (args.positional.size() > num_parameters) {
    raise("macro '{}' takes not more than {} argument(s)", macro.name, num_parameters);
  }
  const Level level(*this);
  Flow flow;
  return capture(macro.body, *scope, flow);
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  object.defined();
  const auto unsafe = [&] {
    return fmt::format("access to attribute '{}' of '{}' object is unsafe", name,
                       object.type_name());
  };
  if (Namespace* space = object.space()) {
    budget_.step(static_cast<int64_t>(space->attributes.size() / 16));
    if (const Value* value = space->find(name)) return *value;
  } else if (Loop* loop = object.loop()) {
    if (std::optional<Value> value = loop_attribute(*loop, name)) return *std::move(value);
  }
  if (is_mutator(object, name)) return Value::undefined(unsafe());
  if (const Builtin* method = find_method(object, name))
    return std::make_shared<const Function>(Function{.builtin = method, .self = object});
  if (const Dict* dict = object.dict()) {
    budget_.step(static_cast<int64_t>(dict->items.size() / 16));
    if (const Value* value = dict->find(name)) return *value;
  }
  // What Python keeps under such names leads out of the sandbox.
  if (name.starts_with("__")) throw TemplateError(unsafe());
  return Value::undefined(
      fmt::format("'{}' has no attribute '{}'",
                  object.is_none() ? "None" : fmt::format("{} object", object.type_name()), name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  object.defined();
  if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->find(key, budget_)) return *value;
  } else if (key.is_integer() && is_indexable(object)) {
    const auto size = static_cast<Int>(length(object, budget_));
    const Int i = key.integer() < 0 ? key.integer() + size : key.integer();
    if (i >= 0 && i < size) {
      const auto at = static_cast<size_t>(i);
      if (const Sequence* list = object.sequence()) return list->items[at];
      const std::string_view rest =
          std::string_view(object.string()).substr(byte_offset(object.string(), at));
      return rest.substr(0, byte_offset(rest, 1));
    }
  }
  if (key.is_string()) return attribute(object, key.string());
  return Value::undefined(
      fmt::format("{} object has no element {}", object.type_name(), repr(key, budget_)));
}

std::optional<Value> Interpreter::loop_attribute(Loop& loop, std::string_view name) {
  const int64_t index = loop.index;
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "first") return index == 0;
  if (name == "last") return num_ahead(loop, false) == 0;
  if (name == "length") return index + 1 + static_cast<int64_t>(num_ahead(loop, true));
  if (name == "revindex") return num_ahead(loop, true) + 1;
  if (name == "revindex0") return num_ahead(loop, true);
  if (name == "depth") return loop.depth + 1;
  if (name == "depth0") return loop.depth;
  if (name == "previtem")
    return index == 0 ? Value::undefined("there is no previous item") : loop.previous;
  if (name == "nextitem")
    return num_ahead(loop, false) == 0 ? Value::undefined("there is no next item")
                                       : loop.ready[loop.next];
  return std::nullopt;
}

}  // namespace nanovllm::jinja
