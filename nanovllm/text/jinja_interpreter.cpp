#include "nanovllm/text/jinja_interpreter.h"

#include <algorithm>

#include "nanovllm/text/jinja_text.h"

namespace nanovllm::jinja {

Interpreter::Level::Level(Interpreter& interpreter) : depth(interpreter.depth_) {
  if (depth >= kMaxDepth) raise("the template recurses deeper than {} levels", kMaxDepth);
  ++depth;
}

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
  using enum Stmt::Kind;
  const Level level(*this);
  budget_.step();
  at_ = stmt.offset;
  switch (stmt.kind) {
    case kText:
      out_->add(stmt.text);
      break;
    case kOutput:
      write(*out_, eval(*stmt.expr, scope));
      break;
    case kIf:
      for (const auto& [condition, body] : stmt.branches)
        if (condition == nullptr || truthy(eval(*condition, scope))) return execute(body, scope);
      break;
    case kFor: {
      Values items = to_list(eval(*stmt.expr, scope), budget_);
      if (stmt.recursive) keep(scope);
      return run_loop(stmt, scope, std::move(items), 0);
    }
    case kSet:
      assign(*stmt.target, eval(*stmt.expr, scope), scope);
      break;
    case kSetBlock:
    case kFilter: {
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
      if (stmt.kind == kSetBlock) assign(*stmt.target, std::move(text), scope);
      else write(*out_, text);
      break;
    }
    case kMacro:
      scope.set(stmt.symbol, make_macro(*stmt.macro, scope));
      break;
    case kCall:
      call_block(stmt, scope);
      break;
    case kWith: {
      const auto own = std::make_shared<Scope>(&scope);
      for (const auto& [target, value] : stmt.assignments)
        assign(*target, eval(*value, scope), *own);
      return execute(stmt.body, *own);
    }
    case kScope:
      return execute_in_own_scope(stmt.body, scope);
    case kBreak:
      return Flow::kBreak;
    case kContinue:
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
      .stmt = &stmt, .outer = &outer, .source = std::move(items), .ready = {}, .depth = depth});
  // Jinja2 takes the else where no turn came to its end: also after a break or continue in each.
  bool completed = false;
  while (num_ahead(loop, false) > 0) {
    budget_.step();
    ++loop.index;
    loop.previous = std::exchange(loop.current, std::move(loop.ready[loop.next++]));
    const auto scope = std::make_shared<Scope>(&outer);
    if (loop_symbol_ >= 0) scope->set(loop_symbol_, &loop);
    assign(*stmt.target, loop.current, *scope);
    const Flow flow = execute(stmt.body, *scope);
    if (flow == Flow::kBreak) break;
    completed = completed || flow == Flow::kNormal;
  }
  // The template may keep the loop, but it has nothing more to say about its items.
  loop.source = loop.ready = {};
  loop.num_taken = loop.next = 0;
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
    loop.ready.push_back(std::move(next));
    return true;
  }
  return false;
}

size_t Interpreter::num_ahead(Loop& loop, bool all) {
  if (loop.next == loop.ready.size()) fetch(loop);
  while (all && fetch(loop)) {
  }
  return loop.ready.size() - loop.next;
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

Value Interpreter::make_macro(const Macro& macro, Scope& scope) {
  keep(scope);
  return std::make_shared<const Function>(Function{.macro = &macro, .scope = &scope});
}

void Interpreter::keep(Scope& scope) {
  for (Scope* s = &scope; s != nullptr && !s->kept; s = s->parent) {
    budget_.build(4 * sizeof(Scope));  // with its variables' and owners' memory
    kept_.push_back(s->shared_from_this());
    s->kept = true;
  }
}

Namespace* Interpreter::make_namespace() {
  budget_.build(sizeof(Namespace));
  return namespaces_.emplace_back(std::make_unique<Namespace>()).get();
}

}  // namespace nanovllm::jinja
