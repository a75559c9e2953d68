#include "nanovllm/text/jinja_interpreter.h"

#include <algorithm>

#include "nanovllm/text/jinja_text.h"

namespace nanovllm::jinja {

namespace {

// Of expressions, statements and macro calls within each other; about where CPython ends a
// template's recursion, and half a megabyte of stack.
constexpr int kMaxDepth = 1000;

}  // namespace

const Value* Scope::find(Symbol symbol) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent)
    for (const auto& variable : scope->variables)
      if (variable.first == symbol) return &variable.second;
  return nullptr;
}

void Scope::set(Symbol symbol, Value value) {
  for (auto& variable : variables) {
    if (variable.first != symbol) continue;
    variable.second = std::move(value);
    return;
  }
  variables.emplace_back(symbol, std::move(value));
}

struct Interpreter::Level {
  explicit Level(Interpreter& interpreter) : depth(interpreter.depth_) {
    if (++depth > kMaxDepth) raise("the template recurses deeper than {} levels", kMaxDepth);
  }
  ~Level() { --depth; }
  int& depth;
};

std::string Interpreter::render(const Json& context, const Json& defaults) {
  try {
    const auto root = std::make_shared<Scope>(nullptr);
    for (size_t i = 0; i < template_.names().size(); ++i) {
      const std::string& name = template_.names()[i];
      const auto symbol = static_cast<Symbol>(i);
      if (name == "loop") loop_symbol_ = symbol;
      if (const auto it = context.find(name); it != context.end())
        root->set(symbol, from_json(*it, budget_));
      else if (const auto other = defaults.find(name); other != defaults.end())
        root->set(symbol, from_json(*other, budget_));
      else if (const Builtin* global = find_global(name))
        root->set(symbol, std::make_shared<const Function>(Function{.builtin = global}));
    }
    // Sets at the top are seen by macros, but a variable of the caller is not a template's to
    // change for others.
    Writer out(budget_);
    out_ = &out;
    execute(template_.body(), *root);
    return out.take();
  } catch (const TemplateError& error) {
    template_.report(error.offset == TemplateError::kUnknown ? TemplateError(error.what(), at_)
                                                             : error);
  }
}

Interpreter::Flow Interpreter::execute(const Body& body, Scope& scope) {
  for (const Stmt& stmt : body)
    if (const Flow flow = execute(stmt, scope); flow != Flow::kNormal) return flow;
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::execute_in_own_scope(const Body& body, Scope& scope) {
  const auto own = std::make_shared<Scope>(&scope);
  return execute(body, *own);
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt, Scope& scope) {
  const Level level(*this);
  budget_.step();
  at_ = stmt.offset;
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      out_->add(stmt.text);
      break;
    case Stmt::Kind::kOutput:
      write(*out_, eval(*stmt.expr, scope));
      break;
    case Stmt::Kind::kIf:
      for (const auto& [condition, body] : stmt.branches)
        if (condition == nullptr || truthy(eval(*condition, scope))) return execute(body, scope);
      break;
    case Stmt::Kind::kFor: {
      Values items = to_list(eval(*stmt.expr, scope), budget_);
      if (stmt.recursive) keep(scope);
      return run_loop(stmt, scope, std::move(items), 0);
    }
    case Stmt::Kind::kSet:
      assign(*stmt.target, eval(*stmt.expr, scope), scope);
      break;
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilter: {
      Flow flow;
      const auto own = std::make_shared<Scope>(&scope);
      Value text = capture(stmt.body, *own, flow);
      if (flow != Flow::kNormal) return flow;
      if (stmt.expr != nullptr) {
        const Value* outer = std::exchange(block_input_, &text);
        Value filtered = eval(*stmt.expr, scope);
        block_input_ = outer;
        text = std::move(filtered);
      }
      if (stmt.kind == Stmt::Kind::kSetBlock) assign(*stmt.target, std::move(text), scope);
      else write(*out_, text);
      break;
    }
    case Stmt::Kind::kMacro:
      scope.set(stmt.symbol, make_macro(*stmt.macro, scope));
      break;
    case Stmt::Kind::kCall:
      call_block(stmt, scope);
      break;
    case Stmt::Kind::kWith: {
      const auto own = std::make_shared<Scope>(&scope);
      for (const auto& [target, value] : stmt.assignments)
        assign(*target, eval(*value, scope), *own);
      return execute(stmt.body, *own);
    }
    case Stmt::Kind::kScope:
      return execute_in_own_scope(stmt.body, scope);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

std::string Interpreter::capture(const Body& body, Scope& scope, Flow& flow) {
  Writer out(budget_);
  Writer* outer = std::exchange(out_, &out);
  flow = execute(body, scope);
  out_ = outer;
  return out.take();
}

Interpreter::Flow Interpreter::run_loop(const Stmt& stmt, Scope& outer, Values items, int depth) {
  budget_.build(sizeof(Loop));
  Loop& loop = *loops_.emplace_back(new Loop{
      .stmt = &stmt, .outer = &outer, .source = std::move(items), .ahead = {}, .depth = depth});
  // Jinja2 takes the else where no turn came to its end: also after a break or continue in each.
  bool completed = false;
  while (num_ahead(loop, false) > 0) {
    budget_.step();
    ++loop.index;
    loop.previous = std::exchange(loop.current, std::move(loop.ahead.front()));
    loop.ahead.pop_front();
    const auto scope = std::make_shared<Scope>(&outer);
    if (loop_symbol_ >= 0) scope->set(loop_symbol_, &loop);
    assign(*stmt.target, loop.current, *scope);
    const Flow flow = execute(stmt.body, *scope);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNormal;
  }
  loop.source.clear();
  loop.ahead.clear();
  loop.num_taken = 0;
  return completed ? Flow::kNormal : execute_in_own_scope(stmt.otherwise, outer);
}

bool Interpreter::fetch(Loop& loop) {
  while (loop.num_taken < loop.source.size()) {
    Value& next = loop.source[loop.num_taken++];
    if (loop.stmt->test != nullptr) {
      const auto scope = std::make_shared<Scope>(loop.outer);
      assign(*loop.stmt->target, next, *scope);
      if (!truthy(eval(*loop.stmt->test, *scope))) continue;
    }
    loop.ahead.push_back(std::move(next));
    return true;
  }
  return false;
}

size_t Interpreter::num_ahead(Loop& loop, bool all) {
  if (loop.ahead.empty()) fetch(loop);
  while (all && fetch(loop)) {
  }
  return loop.ahead.size();
}

void Interpreter::call_block(const Stmt& stmt, Scope& scope) {
  const Expr& expr = *stmt.expr;
  const Value callee = eval(*expr.operands[0], scope);
  Args args = eval_args(expr.args, scope);
  args.named.emplace_back("caller", make_macro(*stmt.macro, scope));
  at_ = expr.offset;
  write(*out_, call(callee, std::move(args)));
}

void Interpreter::assign(const Expr& target, Value value, Scope& scope) {
  switch (target.kind) {
    case Expr::Kind::kTuple: {
      Values items = to_list(value, budget_);
      const size_t count = target.operands.size();
      if (items.size() > count) raise("too many values to unpack (expected {})", count);
      if (items.size() < count)
        raise("not enough values to unpack (expected {}, got {})", count, items.size());
      for (size_t i = 0; i < count; ++i) assign(*target.operands[i], std::move(items[i]), scope);
      return;
    }
    case Expr::Kind::kNamespaceRef: {
      const Value* object = scope.find(target.symbol);
      if (object == nullptr || object->space() == nullptr)
        raise("cannot assign attribute on non-namespace object");
      const std::string& name = target.value.string();
      if (Value* old = object->space()->find(name)) {
        *old = std::move(value);
      } else {
        budget_.build(name.size() + 2 * sizeof(Value));
        object->space()->attributes.emplace_back(name, std::move(value));
      }
      return;
    }
    default:
      scope.set(target.symbol, std::move(value));
  }
}

Value Interpreter::eval(const Expr& expr, Scope& scope) {
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
    case Expr::Kind::kConstant:
      return expr.value;
    case Expr::Kind::kNamespaceRef:
      break;
    case Expr::Kind::kName: {
      const Value* found = scope.find(expr.symbol);
      if (found != nullptr) return *found;
      return Value::undefined(
          fmt::format("'{}' is undefined", template_.names()[static_cast<size_t>(expr.symbol)]));
    }
    case Expr::Kind::kTuple:
      return make_tuple(operands(), budget_);
    case Expr::Kind::kList:
      return make_list(operands(), budget_);
    case Expr::Kind::kDict: {
      Values values = operands();
      Dict dict;
      for (size_t i = 0; i < values.size(); i += 2)
        dict.set(std::move(values[i]), std::move(values[i + 1]), budget_);
      return make_dict(std::move(dict), budget_);
    }
    case Expr::Kind::kAttribute: {
      const Value object = operand(0);
      at_ = expr.offset;
      return attribute(object, expr.value.string());
    }
    case Expr::Kind::kItem: {
      const Value object = operand(0);
      const Value key = operand(1);
      at_ = expr.offset;
      return item(object, key);
    }
    case Expr::Kind::kSlice:
      return eval_slice(expr, scope);
    case Expr::Kind::kCall: {
      const Value callee = operand(0);
      Args args = eval_args(expr.args, scope);
      at_ = expr.offset;
      return call(callee, std::move(args));
    }
    case Expr::Kind::kFilter:
    case Expr::Kind::kTest:
      return eval_builtin(expr, scope);
    case Expr::Kind::kNot:
      return !truthy(operand(0));
    case Expr::Kind::kNegative:
      return negative(operand(0));
    case Expr::Kind::kPositive: {
      const Value v = operand(0);
      if (!v.defined().is_number()) raise("bad operand type for unary +: '{}'", v.type_name());
      return v.is_bool() ? Value(v.integer()) : v;
    }
    case Expr::Kind::kBinary: {
      const Value a = operand(0);
      const Value b = operand(1);
      at_ = expr.offset;
      return binary(expr.ops[0], a, b, *this);
    }
    case Expr::Kind::kCompare:
      return eval_compare(expr, scope);
    case Expr::Kind::kAnd: {
      Value left = operand(0);
      return truthy(left) ? operand(1) : left;
    }
    case Expr::Kind::kOr: {
      Value left = operand(0);
      return truthy(left) ? left : operand(1);
    }
    case Expr::Kind::kConcat: {
      Writer out(budget_);
      for (const ExprPtr& e : expr.operands) write(out, eval(*e, scope));
      return out.take();
    }
    case Expr::Kind::kConditional:
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
  const uint32_t at = at_;
  for (size_t i = 0; i < num_parameters; ++i) {
    const auto& [symbol, otherwise] = macro.parameters[i];
    const std::string& name = macro.parameter_names[i];
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

Value Interpreter::make_macro(const Macro& macro, Scope& scope) {
  keep(scope);
  return std::make_shared<const Function>(Function{.macro = &macro, .scope = &scope});
}

void Interpreter::keep(Scope& scope) {
  for (Scope* s = &scope; s != nullptr && !s->kept; s = s->parent) {
    budget_.build(sizeof(Scope));
    kept_.push_back(s->shared_from_this());
    s->kept = true;
  }
}

Namespace* Interpreter::make_namespace() {
  budget_.build(sizeof(Namespace));
  return namespaces_.emplace_back(std::make_unique<Namespace>()).get();
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  object.defined();
  const auto unsafe = [&] {
    return fmt::format("access to attribute '{}' of '{}' object is unsafe", name,
                       object.type_name());
  };
  if (Namespace* space = object.space()) {
    if (const Value* value = space->find(name)) return *value;
  } else if (const Sequence* list = object.sequence(); list != nullptr && list->name == "group") {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
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
  } else if (key.is_integer()) {
    const Sequence* list = object.sequence();
    const bool is_list = list != nullptr && list->indexable();
    if (is_list || object.is_string()) {
      const auto size = static_cast<Int>(length(object, budget_));
      const Int i = key.integer() < 0 ? key.integer() + size : key.integer();
      if (i >= 0 && i < size) {
        if (is_list) return list->items[static_cast<size_t>(i)];
        const std::string_view s = object.string();
        const size_t begin = byte_offset(s, static_cast<size_t>(i));
        size_t end = begin;
        next_code_point(s, end);
        return s.substr(begin, end - begin);
      }
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
                                       : loop.ahead.front();
  return std::nullopt;
}

}  // namespace nanovllm::jinja
