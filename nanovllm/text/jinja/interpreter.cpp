#include "nanovllm/text/jinja/interpreter.h"

#include <algorithm>
#include <optional>

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/text.h"

namespace nanovllm::jinja {

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
  if (variables.size() == variables.capacity()) {
    const size_t capacity = std::max<size_t>(2, 2 * variables.size());
    interpreter.budget.build(capacity * sizeof(variables[0]));
    variables.reserve(capacity);
  }
  variables.emplace_back(symbol, std::move(value));
}

void Args::charge(Budget& budget) const {
  budget.build(positional.size() * sizeof(Value) + named.size() * sizeof(Named));
  for (const auto& [name, value] : named) budget.build(name.size());
}

std::vector<Args::Named>::const_iterator Args::find(std::string_view name, Budget& budget) const {
  size_t num_read = 0;
  auto it = named.begin();
  for (; it != named.end(); ++it) {
    num_read += 1 + (it->first.size() == name.size() ? name.size() : 0);
    if (it->first == name) break;
  }
  budget.step(num_read / 4);
  return it;
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
      else if (const Builtin* global = find_builtin("()", name))
        root.set(symbol, make_function({.builtin = global}, budget));
    }
    return capture(template_.body(), root, nullptr);
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

Flow Interpreter::run(const ForLoop& written, Scope& outer, Values items, int depth) {
  budget.build(sizeof(Loop));
  const size_t num_ready = written.test ? 0 : items.size();
  Loop& loop = loops_.emplace_front(
      Loop{written, outer, std::move(items), num_ready, num_ready, /*index=*/-1, depth});
  // Jinja2 takes the else where no turn came to its end: also after a break or continue in each.
  bool completed = false;
  while (num_ahead(loop, false) > 0) {
    budget.step();
    ++loop.index;
    Scope& scope = new_scope(&outer);
    scope.set(written.loop, &loop);
    written.target(scope, loop.items[static_cast<size_t>(loop.index)]);
    const Flow flow = written.body(scope);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNormal;
  }
  // The template may keep the loop, but it has nothing more to say about its items.
  loop.items.clear();
  loop.num_ready = loop.num_taken = 0;
  if (!completed && written.otherwise) return written.otherwise(new_scope(&outer));
  return Flow::kNormal;
}

size_t Interpreter::num_ahead(Loop& loop, bool all) {
  const auto next = static_cast<size_t>(loop.index + 1);
  while (loop.num_taken < loop.items.size() && (all || loop.num_ready <= next)) {
    Value& item = loop.items[loop.num_taken++];
    Scope& scope = new_scope(&loop.outer);
    loop.written.target(scope, item);
    if (!truthy(loop.written.test(scope))) continue;
    if (&loop.items[loop.num_ready] != &item) loop.items[loop.num_ready] = std::move(item);
    ++loop.num_ready;
  }
  return std::max(loop.num_ready, next) - next;
}

Value Interpreter::call(const Builtin& builtin, Args args) {
  budget.step(4 + args.named.size());
  args.charge(budget);
  Bound bound(builtin, *this, std::move(args));
  Value result = builtin.call(bound);
  if (result.is_new_text()) budget.build_text(result.string().size());
  return result;
}

Value Interpreter::call(const Value& callee, Args args) {
  if (Loop* loop = callee.loop()) {
    if (!loop->written.recursive)
      raise("the loop must have the 'recursive' marker to be called recursively");
    if (args.positional.size() != 1 || !args.named.empty()) raise("loop() takes one argument");
    const auto body = [&](Scope& scope) {
      return run(loop->written, scope, to_list(args.positional[0], budget), loop->depth + 1);
    };
    return capture(body, loop->outer, nullptr);
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
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    const auto it = args.find(name, budget);
    if (it == args.named.end()) return std::nullopt;
    Value value = it->second;
    args.named.erase(it);
    return value;
  };
  Values& given = args.positional;
  const size_t num_parameters = macro.parameters.size();
  for (size_t i = 0; i < num_parameters; ++i) {
    const auto& [name, symbol, otherwise] = macro.parameters[i];
    std::optional<Value> value = i < given.size() ? given[i] : take_named(name);
    if (!value && otherwise) value = otherwise(scope);
    if (!value) value = undefined("parameter '{}' was not provided", name);
    scope.set(symbol, *std::move(value));
  }
  if (macro.caller >= 0)
    scope.set(macro.caller, take_named("caller").value_or(undefined("No caller defined")));
  if (macro.kwargs < 0 && !args.named.empty())
    raise("macro '{}' takes no keyword argument '{}'", macro.name, args.named[0].first);
  if (macro.varargs < 0 && given.size() > num_parameters)
    raise("macro '{}' takes not more than {} argument(s)", macro.name, num_parameters);
  if (macro.kwargs >= 0) {
    Dict rest;
    for (auto& [name, value] : args.named) rest.set(name, std::move(value), budget);
    scope.set(macro.kwargs, make_dict(std::move(rest), budget));
  }
  if (macro.varargs >= 0) {
    const auto num_taken = static_cast<ptrdiff_t>(std::min(num_parameters, given.size()));
    scope.set(macro.varargs, make_tuple({given.begin() + num_taken, given.end()}, budget));
  }
  const Level level(*this);
  return capture(macro.body, scope, nullptr);
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  budget.read(name.size());
  const std::string_view type = object.defined().type_name();
  if (const Namespace* space = object.space())
    if (const Value* value = space->find(name, budget)) return *value;
  if (Loop* loop = object.loop())
    if (Value value = loop_attribute(*loop, name); !value.is_none()) return value;
  const Builtin* method = find_method(object, name);
  if (method != nullptr && method->call == is_unsafe)
    return undefined("access to attribute '{}' of '{}' object is unsafe", name, type);
  if (method != nullptr) return make_function({.builtin = method, .self = object}, budget);
  if (const Dict* dict = object.dict())
    if (const Value* value = dict->find(name, budget)) return *value;
  // What Python keeps under such names leads out of the sandbox.
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
    if (i >= 0 && i < size) {
      const auto at = static_cast<size_t>(i);
      if (list != nullptr) return list->items[at];
      const std::string_view rest =
          std::string_view(object.string()).substr(byte_offset(object.string(), at));
      return make_text(rest.substr(0, byte_offset(rest, 1)), budget);
    }
  }
  if (key.is_string()) return attribute(object, key.string());
  return undefined("{} object has no element {}", object.type_name(), repr(key, budget));
}

/// None where there is no such attribute.
Value Interpreter::loop_attribute(Loop& loop, std::string_view name) {
  const int64_t index = loop.index;
  const auto at = [&](int64_t i) { return loop.items[static_cast<size_t>(i)]; };
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
    return index == 0 || loop.items.empty() ? undefined("there is no previous item")
                                            : at(index - 1);
  if (name == "nextitem")
    return num_ahead(loop, false) == 0 ? undefined("there is no next item") : at(index + 1);
  return None{};
}

}  // namespace nanovllm::jinja
