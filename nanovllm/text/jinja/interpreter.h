#pragma once

#include <ctime>
#include <forward_list>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/text/jinja/value.h"

/// An interpreter for the part of Jinja2 that chat templates use. It behaves as Jinja2 does in
/// transformers: an immutable sandbox with trim_blocks, lstrip_blocks and loop controls. Read this
/// file first.
///
///   lexer.cpp        turns the source into tokens (tokens.h), and removes whitespace around tags
///   expressions.h    turns expressions into a tree of functions, each an Expr
///   parser.cpp       turns statements into such functions, each a Body; the function is written
///                    where the statement is parsed
///   interpreter.h    the state of one rendering, which those functions get through their Scope
///   builtins.h       the table of filters (filters.cpp), tests, global functions and methods
///   value.h          Python's values and operators; print.cpp: str, repr, json.dumps, formats
///   text.h           Python's str on UTF-8
///   budget.h         errors and limits
///
/// It supports all expressions; the statements if, for (with else, if, recursive), set, with,
/// filter, macro, call, raw, break, continue and transformers' generation; namespaces; and the
/// builtins that published templates use. It refuses include, import, extends and block, because a
/// chat template is one file, and everything that could change a value or leave the sandbox.
///
/// A template comes with a checkpoint, so it may be hostile. Budget bounds the steps and bytes of a
/// rendering. Constants in tokens.h, value.cpp and below bound nesting, because nesting becomes
/// recursion.
namespace nanovllm::jinja {

class Interpreter;

/// The number of a variable's name: its index in Template::names(), which begins with these four.
using Symbol = int;
inline constexpr Symbol kCaller = 0, kVarargs = 1, kKwargs = 2, kLoop = 3;

/// The variables of a block. Those of the enclosing blocks are read through `parent`. A lookup
/// compares one variable after another, because there are few.
struct Scope {
  Interpreter& interpreter;
  Scope* parent;
  std::vector<std::pair<Symbol, Value>> variables = {};

  const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);
};

/// How a statement ended.
enum class Flow { kNormal, kBreak, kContinue };

/// The tree of a template. Its functions own their parts and store nothing of a rendering, so
/// several threads may call them at once.
using Expr = std::function<Value(Scope&)>;
using Body = std::function<Flow(Scope&)>;
using Target = std::function<void(Scope&, Value)>;

/// The arguments of a call.
struct Args {
  Values positional = {};
  Dict named = {};
  size_t num_taken = 0;  // positional arguments that were taken

  /// Charges for the memory of a copy of the arguments.
  void charge(Budget& budget) const;
  /// Takes the next positional argument or, if there is none, the one named `name`.
  std::optional<Value> take(std::string_view name, Budget& budget);
  std::optional<Value> take_named(std::string_view name, Budget& budget);
  /// All positional arguments that are left.
  Values take_rest();
  /// expect_no_positional() and expect_no_named() raise if arguments are left, because the callee
  /// does not take them.
  void expect_no_positional(std::string_view callee) const;
  void expect_no_named(std::string_view callee) const;
};

struct Parameter {
  std::string name;
  Symbol symbol;
  Expr default_value;  // empty if it has none
};

/// A macro, or the body of a call block.
struct Macro {
  std::string name;
  std::vector<Parameter> parameters = {};
  Body body = {};
  bool mentions[3] = {};  // whether the body reads kCaller, kVarargs, kKwargs without parameters
};

/// {% for target in items if test %} body {% else %} else_body {% endfor %}
struct ForLoop {
  Target target;
  Expr items;
  Expr test;  // empty if absent; so is `else_body`
  Body body;
  Body else_body;
  bool recursive = false;
};

/// A running for loop, which its body sees as `loop`.
struct Loop {
  const ForLoop& statement;
  Scope& outer;
  int depth;
  // items[0, num_ready) passed the loop's test; those from num_taken on are not tested yet. An item
  // is tested only when it is needed, because the test may read what the body sets.
  Values items;
  size_t num_taken;
  size_t num_ready;
  int64_t index = -1;
  std::optional<Values> last_changed = {};
};

/// A parsed template. Immutable, so that any number of threads may render it.
class Template {
 public:
  /// Throws UserError "<where>, line L, column C: <what>".
  Template(std::string_view source, std::string where);

  const std::string& source() const { return source_; }
  const Body& body() const { return body_; }
  const std::vector<std::string>& names() const { return names_; }
  /// Throws `error` as a UserError with its line and column, which are counted from 1. Columns
  /// count code points.
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
  explicit Interpreter(const Template& source, Budget budget = Budget(),
                       std::time_t now = std::time(nullptr))
      : budget(std::move(budget)), now(now), template_(source) {}

  /// Throws UserError with the position if the template has an error.
  std::string render(const Json& context, const Json& defaults);

  /// Counts a step, and a level of recursion while the result exists.
  [[nodiscard]] Level enter() {
    budget.step();
    return {depth_, kMaxDepth, "the template recurses"};
  }

  Value call(const Value& callee, Args args);
  Value call(const Builtin& builtin, Args args);
  /// object.name and object[key]. Like Jinja2, each tries the other form next; the result is
  /// undefined if both fail.
  Value attribute(const Value& object, const Value& name);
  Value item(const Value& object, const Value& key);
  template <class... Parts>
  Value undefined(fmt::format_string<Parts...> why, Parts&&... parts) {
    return make_undefined(fmt::format(why, std::forward<Parts>(parts)...), budget);
  }
  const std::string& name(Symbol s) const { return template_.names()[static_cast<size_t>(s)]; }

  Flow run(const ForLoop& statement, Scope& outer, Values items, int depth);
  /// How many items of the loop remain. Without `all`, it tests only the next item.
  size_t num_to_come(Loop& loop, bool all);
  /// Returns what the body writes.
  std::string capture(const Body& body, Scope& scope, Flow* flow = nullptr);

  /// Makes a scope that exists as long as the rendering, because macros and loops refer to scopes
  /// by address.
  Scope& new_scope(Scope* parent);
  Namespace& new_namespace();

  Budget budget;
  const std::time_t now;
  Writer* out = nullptr;  // where statements write
  Value block_text;       // the input of a block's filters

 private:
  // Limits nested expressions, statements and macro calls, which take a megabyte of stack at this
  // depth. CPython ends a template's recursion at about the same depth.
  static constexpr int kMaxDepth = 1000;

  Value call_macro(const Macro& macro, Scope& defined_in, Args args);
  std::optional<Value> loop_attribute(Loop& loop, std::string_view name);

  const Template& template_;
  int depth_ = 0;
  std::forward_list<Scope> scopes_;
  std::forward_list<Namespace> namespaces_;
  std::forward_list<Loop> loops_;
};

}  // namespace nanovllm::jinja
