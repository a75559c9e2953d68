#pragma once

#include <ctime>
#include <forward_list>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/text/jinja/value.h"

namespace nanovllm::jinja {

class Interpreter;

/// A variable's name as a number: its place in Template::names.
using Symbol = int;

/// The variables of a block; those of the blocks around it are read through `parent`. Looked up one
/// after another: there are few.
struct Scope {
  Interpreter& interpreter;
  Scope* parent;
  std::vector<std::pair<Symbol, Value>> variables = {};

  const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);
};

enum class Flow { kNormal, kBreak, kContinue };

/// The parser turns a template into functions that hold each other: what is written and what it
/// means stand in one place. They hold nothing of a rendering, so threads may share them.
using Expr = std::function<Value(Scope&)>;
using Body = std::function<Flow(Scope&)>;
using Target = std::function<void(Scope&, Value)>;

/// The arguments of a call, in the order in which they were written.
struct Args {
  using Named = std::pair<std::string, Value>;
  Values positional;
  std::vector<Named> named;

  /// What a copy of them takes.
  void charge(Budget& budget) const;
  /// The end of `named` where there is none.
  std::vector<Named>::const_iterator find(std::string_view name, Budget& budget) const;
};

struct Parameter {
  std::string name;
  Symbol symbol;
  Expr otherwise;  // empty where it has no default
};

/// A macro, or the body of a call block.
struct Macro {
  std::string name;
  std::vector<Parameter> parameters = {};
  Body body = {};
  Symbol caller = -1;  // these three: -1 where the body does not mention them
  Symbol varargs = -1;
  Symbol kwargs = -1;
};

/// {% for target in items if test %} body {% else %} otherwise {% endfor %}
struct ForLoop {
  Target target;
  Expr items;
  Expr test;  // empty where absent, as `otherwise`
  Body body;
  Body otherwise;
  Symbol loop;
  bool recursive = false;
};

/// A running for loop, and what its body sees as `loop`.
struct Loop {
  const ForLoop& written;
  Scope& outer;
  Values items;      // those before num_ready passed the loop's test,
  size_t num_taken;  // which is asked no earlier than the next item is wanted:
  size_t num_ready;  // it may read what the body sets
  int64_t index;
  int depth;
  Values last_changed = {};
  bool has_changed = false;
};

/// A parsed template. Immutable, so that any number of threads may render it.
class Template {
 public:
  /// Throws UserError "<where>, line L, column C: <what>".
  Template(std::string_view source, std::string where);

  const Body& body() const { return body_; }
  const std::vector<std::string>& names() const { return names_; }
  /// Throws `error` as a UserError with its line and column, both from 1; columns count code
  /// points.
  [[noreturn]] void report(const TemplateError& error) const;

 private:
  std::string source_;
  std::string where_;
  std::vector<std::string> names_;
  Body body_;
};

/// One rendering of a template.
class Interpreter {
 public:
  /// `now`: the time that strftime_now() formats.
  Interpreter(const Template& source, Budget& budget, std::time_t now = std::time(nullptr))
      : budget(budget), now(now), template_(source) {}

  /// Throws UserError with the position of a template's error.
  std::string render(const Json& context, const Json& defaults);

  /// Of expressions, statements and macro calls within each other: about where CPython ends a
  /// template's recursion, and a megabyte of stack.
  static constexpr int kMaxDepth = 1000;
  struct Level {
    explicit Level(Interpreter& interpreter) : depth(interpreter.depth_) {
      interpreter.budget.step();
      if (depth >= kMaxDepth) raise("the template recurses deeper than {} levels", kMaxDepth);
      ++depth;
    }
    ~Level() { --depth; }
    int& depth;
  };

  Value call(const Value& callee, Args args);
  Value call(const Builtin& builtin, Args args);
  /// object.name and object[key], with Jinja2's fallback from the one to the other. Undefined where
  /// there is neither.
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  template <class... Parts>
  Value undefined(fmt::format_string<Parts...> why, Parts&&... parts) {
    return Value::undefined(fmt::format(why, std::forward<Parts>(parts)...), budget);
  }
  const std::string& name(Symbol s) const { return template_.names()[static_cast<size_t>(s)]; }

  Flow run(const ForLoop& written, Scope& outer, Values items, int depth);
  /// Items of the loop that are still to come; looks only one ahead unless all are asked for.
  size_t num_ahead(Loop& loop, bool all);
  /// What the body writes, as a text.
  std::string capture(const Body& body, Scope& scope, Flow* flow);

  /// They live as long as the rendering: macros and loops hold scopes by their address.
  Scope& new_scope(Scope* parent);
  Namespace& new_namespace();

  Budget& budget;
  const std::time_t now;
  Writer* out = nullptr;  // where statements write

 private:
  Value call_macro(const Macro& macro, Scope& defined_in, Args args);
  Value loop_attribute(Loop& loop, std::string_view name);

  const Template& template_;
  int depth_ = 0;
  std::forward_list<Scope> scopes_;
  std::forward_list<Namespace> namespaces_;
  std::forward_list<Loop> loops_;
};

}  // namespace nanovllm::jinja
