#include "nanovllm/text/jinja/interpreter.h"

#include <algorithm>

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/text.h"

namespace nanovllm::jinja {

namespace {

/// Converts a text of a variable to well-formed UTF-8, on which everything that reads texts relies.
Value text_from_json(const std::string& s, Budget& budget) {
  if (!is_utf8(s)) raise("a variable is a string that is not valid UTF-8");
  budget.grow(s.size());
  budget.build(s.size());
  return s;
}

/// A variable of the caller; grows the budget by its size.
Value from_json(const Json& json, Budget& budget) {
  budget.grow(16);
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned()) return json.get<uint64_t>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_string()) return text_from_json(json.string(), budget);
  if (json.is_array()) {
    Values items;
    for (const Json& item : json) items.push_back(from_json(item, budget));
    return make_list(std::move(items), budget);
  }
  Dict dict;
  for (const auto& [key, item] : json.items())
    dict.add(text_from_json(key, budget), from_json(item, budget), budget);
  return make_dict(std::move(dict), budget);
}

}  // namespace

const Value* Scope::find(Symbol symbol) const {
  const Value* found = nullptr;
  size_t num_read = 0;
  for (const Scope* scope = this; scope != nullptr && found == nullptr; scope = scope->parent) {
    num_read += 1 + scope->variables.size();
    for (const auto& variable : scope->variables)
      if (variable.first == symbol) found = &variable.second;
  }
  interpreter.budget.step(num_read / 16);
  return found;
}

void Scope::set(Symbol symbol, Value value) {
  interpreter.budget.step(1 + variables.size() / 16);
  const auto old = std::ranges::find(variables, symbol, &std::pair<Symbol, Value>::first);
  if (old != variables.end()) {
    old->second = std::move(value);
    return;
  }
  interpreter.budget.build(2 * sizeof(variables[0]));  // a vector doubles its capacity
  variables.emplace_back(symbol, std::move(value));
}

void Args::charge(Budget& budget) const {
  budget.build((positional.size() + 2 * named.items.size()) * sizeof(Value));
}

std::optional<Value> Args::take(std::string_view name, Budget& budget) {
  if (num_taken < positional.size()) return std::move(positional[num_taken++]);
  return take_named(name, budget);
}

std::optional<Value> Args::take_named(std::string_view name, Budget& budget) {
  budget.step(named.items.size() / 4);
  const auto found = std::ranges::find_if(
      named.items, [&](const auto& item) { return item.first.string() == name; });
  if (found == named.items.end()) return std::nullopt;
  Value value = std::move(found->second);
  named.items.erase(found);
  return value;
}

Values Args::take_rest() {
  const auto first = positional.begin() + static_cast<ptrdiff_t>(std::exchange(num_taken, 0));
  Values rest(std::make_move_iterator(first), std::make_move_iterator(positional.end()));
  positional.clear();
  return rest;
}

void Args::expect_no_positional(std::string_view callee) const {
  if (num_taken < positional.size())
    raise("{} takes at most {} positional arguments", callee, num_taken);
}

void Args::expect_no_named(std::string_view callee) const {
  if (!named.items.empty())
    raise("{} takes no argument named '{}'", callee, named.items[0].first.string());
}

std::string Interpreter::render(const Json& context, const Json& defaults) {
  try {
    Scope& root = new_scope(nullptr);
    for (size_t i = 0; i < template_.names().size(); ++i) {
      const std::string& name = template_.names()[i];
      const auto symbol = static_cast<Symbol>(i);
      if (const auto it = context.find(name); it != context.end())
        root.set(symbol, from_json(*it, budget));
      else if (const auto other = defaults.find(name); other != defaults.end())
        root.set(symbol, from_json(*other, budget));
      else if (const Builtin* global = find_builtin("global", name))
        root.set(symbol, make_function({.builtin = global}, budget));
    }
    return capture(template_.body(), root);
  } catch (const TemplateError& error) {
    template_.report(error);
  }
}

std::string Interpreter::capture(const Body& body, Scope& scope, Flow* flow) {
  Writer own(budget);
  Writer* outer = std::exchange(out, &own);
  const Flow ended = body(scope);
  if (flow != nullptr) *flow = ended;
  out = outer;
  return own.take();
}

Scope& Interpreter::new_scope(Scope* parent) {
  budget.build(sizeof(Scope) + 2 * sizeof(void*));
  return scopes_.emplace_front(Scope{*this, parent});
}

Namespace& Interpreter::new_namespace() {
  budget.build(sizeof(Namespace));
  return namespaces_.emplace_front();
}

Flow Interpreter::run(const ForLoop& statement, Scope& outer, Values items, int depth) {
  budget.build(sizeof(Loop));
  const size_t num_ready = statement.test ? 0 : items.size();
  Loop& loop = loops_.emplace_front(
      Loop{statement, outer, depth, std::move(items), /*num_taken=*/num_ready, num_ready});
  // Jinja2 runs the else body if no iteration has come to its end. So it also does if each of them
  // ended in a break or continue.
  bool completed = false;
  while (num_to_come(loop, /*all=*/false) > 0) {
    budget.step();
    ++loop.index;
    Scope& scope = new_scope(&outer);
    scope.set(kLoop, &loop);
    statement.target(scope, loop.items[static_cast<size_t>(loop.index)]);
    const Flow flow = statement.body(scope);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNormal;
  }
  // The template may keep the loop, but not its items.
  loop.items.clear();
  loop.num_ready = loop.num_taken = 0;
  if (!completed && statement.else_body) return statement.else_body(new_scope(&outer));
  return Flow::kNormal;
}

size_t Interpreter::num_to_come(Loop& loop, bool all) {
  const auto next = static_cast<size_t>(loop.index + 1);
  while (loop.num_taken < loop.items.size() && (all || loop.num_ready <= next)) {
    Value& item = loop.items[loop.num_taken++];
    Scope& scope = new_scope(&loop.outer);
    loop.statement.target(scope, item);
    if (!truthy(loop.statement.test(scope))) continue;
    if (&loop.items[loop.num_ready] != &item) loop.items[loop.num_ready] = std::move(item);
    ++loop.num_ready;
  }
  return std::max(loop.num_ready, next) - next;
}

Value Interpreter::call(const Builtin& builtin, Args args) {
  budget.step(4 + args.named.items.size());
  args.charge(budget);
  Bound bound(builtin, *this, std::move(args));
  Value result = builtin.call(bound);
  if (result.is_new_text()) budget.build_text(result.string().size());
  return result;
}

Value Interpreter::call(const Value& callee, Args args) {
  if (Loop* loop = callee.loop()) {
    if (!loop->statement.recursive)
      raise("the loop must have the 'recursive' marker to be called recursively");
    if (args.positional.size() != 1 || !args.named.items.empty())
      raise("loop() takes one argument");
    const auto body = [&](Scope& scope) {
      return run(loop->statement, scope, to_list(args.positional[0], budget), loop->depth + 1);
    };
    return capture(body, loop->outer);
  }
  const Function* function = callee.defined().function();
  if (function == nullptr) raise("'{}' object is not callable", callee.type_name());
  if (function->macro != nullptr)
    return call_macro(*function->macro, *function->scope, std::move(args));
  if (!function->self.is_undefined())
    args.positional.insert(args.positional.begin(), function->self);
  return call(*function->builtin, std::move(args));
}

Value Interpreter::call_macro(const Macro& macro, Scope& defined_in, Args args) {
  args.charge(budget);
  Scope& scope = new_scope(&defined_in);
  for (const auto& [name, symbol, default_value] : macro.parameters) {
    std::optional<Value> value = args.take(name, budget);
    if (!value && default_value) value = default_value(scope);
    if (!value) value = undefined("parameter '{}' was not provided", name);
    scope.set(symbol, *std::move(value));
  }
  if (macro.mentions[kCaller]) {
    const std::optional<Value> caller = args.take_named("caller", budget);
    scope.set(kCaller, caller ? *caller : undefined("No caller defined"));
  }
  if (macro.mentions[kVarargs]) scope.set(kVarargs, make_tuple(args.take_rest(), budget));
  else args.expect_no_positional(macro.name);
  if (macro.mentions[kKwargs]) scope.set(kKwargs, make_dict(std::move(args.named), budget));
  else args.expect_no_named(macro.name);
  const Level level = enter();
  return capture(macro.body, scope);
}

Value Interpreter::attribute(const Value& object, const Value& key) {
  const std::string& name = key.string();
  budget.read(name.size());
  const std::string_view type = object.defined().type_name();
  if (const Namespace* space = object.space())
    if (const Value* value = space->find(key, budget)) return *value;
  if (Loop* loop = object.loop())
    if (const std::optional<Value> value = loop_attribute(*loop, name)) return *value;
  const Builtin* method = find_builtin(type, name);
  if (method != nullptr && method->call == nullptr)
    return undefined("access to attribute '{}' of '{}' object is unsafe", name, type);
  if (method != nullptr) return make_function({.builtin = method, .self = object}, budget);
  if (const Dict* dict = object.dict())
    if (const Value* value = dict->find(key, budget)) return *value;
  // In Python, attributes with these names lead out of the sandbox.
  if (name.starts_with("__"))
    raise("access to attribute '{}' of '{}' object is unsafe", name, type);
  if (object.is_none()) return undefined("'None' has no attribute '{}'", name);
  return undefined("'{} object' has no attribute '{}'", type, name);
}

Value Interpreter::item(const Value& object, const Value& key) {
  const Sequence* list = object.defined().sequence();
  if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->find(key, budget)) return *value;
  } else if (key.is_integer() && (object.is_string() || (list && list->is_indexable()))) {
    const auto size = static_cast<Int>(length(object, budget));
    const Int i = key.integer() < 0 ? key.integer() + size : key.integer();
    if (i >= 0 && i < size)
      return list != nullptr ? list->items[static_cast<size_t>(i)]
                             : slice(object, i, i + 1, 1, budget);
  }
  if (key.is_string()) return attribute(object, key);
  return undefined("{} object has no element {}", object.type_name(), repr(key, budget));
}

std::optional<Value> Interpreter::loop_attribute(Loop& loop, std::string_view name) {
  const int64_t index = loop.index;
  const auto at = [&](int64_t i) { return loop.items[static_cast<size_t>(i)]; };
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "first") return index == 0;
  if (name == "last") return num_to_come(loop, /*all=*/false) == 0;
  if (name == "length") return index + 1 + static_cast<int64_t>(num_to_come(loop, /*all=*/true));
  if (name == "revindex") return num_to_come(loop, /*all=*/true) + 1;
  if (name == "revindex0") return num_to_come(loop, /*all=*/true);
  if (name == "depth") return loop.depth + 1;
  if (name == "depth0") return loop.depth;
  if (name == "previtem")
    return index == 0 || loop.items.empty() ? undefined("there is no previous item")
                                            : at(index - 1);
  if (name == "nextitem")
    return num_to_come(loop, /*all=*/false) == 0 ? undefined("there is no next item")
                                                 : at(index + 1);
  return std::nullopt;
}

}  // namespace nanovllm::jinja
