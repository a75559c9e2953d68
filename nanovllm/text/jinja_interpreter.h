#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_parser.h"
#include "nanovllm/text/jinja_value.h"

namespace nanovllm::jinja {

/// The variables of a block; those of the blocks around it are read through `parent`.
struct Scope : std::enable_shared_from_this<Scope> {
  explicit Scope(Scope* parent) : parent(parent) {}

  const Value* find(Symbol symbol) const;
  void set(Symbol symbol, Value value);

  Scope* parent;
  std::vector<std::pair<Symbol, Value>> variables;
  bool kept = false;  // a macro may look into it after its block ended
};

/// A running for loop, and what its body sees as `loop`.
struct Loop {
  const Stmt* stmt;
  Scope* outer;
  Values source;         // before the loop's condition is applied,
  size_t num_taken = 0;  // which happens no earlier than the next item is asked for
  Values ready;          // items that passed it; those from `next` on are still to come
  size_t next = 0;
  int64_t index = -1;
  int depth;
  Value previous = {};
  Value current = {};
  Values last_changed = {};
  bool has_changed = false;
};

/// One rendering of a template.
class Interpreter {
 public:
  /// `now`: the time that strftime_now() formats.
  Interpreter(const Template& source, Budget& budget, std::time_t now = std::time(nullptr))
      : template_(source), budget_(budget), now_(now) {}

  /// Throws UserError with the position of a template's error.
  std::string render(const Json& context, const Json& defaults);

  // For builtins.
  Budget& budget() { return budget_; }
  std::time_t now() const { return now_; }
  Value call(const Value& callee, Args args);
  Value call(const Builtin& builtin, Args args);
  /// object.name and object[key], with Jinja2's fallback from the one to the other. Undefined where
  /// there is neither.
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Namespace* make_namespace();
  /// Items of the loop that are still to come; looks only one ahead unless all are asked for.
  size_t num_ahead(Loop& loop, bool all);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  /// Of expressions, statements and macro calls within each other: about where CPython ends a
  /// template's recursion, and a megabyte of stack.
  static constexpr int kMaxDepth = 1000;
  struct Level {
    explicit Level(Interpreter& interpreter);
    ~Level() { --depth; }
    int& depth;
  };

  Flow execute(const Body& body, Scope& scope);
  Flow execute(const Stmt& stmt, Scope& scope);
  Flow execute_in_own_scope(const Body& body, Scope& scope);
  /// What the body writes, as a text.
  std::string capture(const Body& body, Scope& scope, Flow& flow);
  Flow run_loop(const Stmt& stmt, Scope& outer, Values items, int depth);
  bool fetch(Loop& loop);
  void call_block(const Stmt& stmt, Scope& scope);
  void assign(const Expr& target, Value value, Scope& scope);

  Value eval(const Expr& expr, Scope& scope);
  Value eval_slice(const Expr& expr, Scope& scope);
  Value eval_compare(const Expr& expr, Scope& scope);
  Value eval_builtin(const Expr& expr, Scope& scope);
  Args eval_args(const CallArgs& args, Scope& scope, Values first = {});
  Value call_macro(const Function& function, Args args);
  std::optional<Value> loop_attribute(Loop& loop, std::string_view name);
  Value make_macro(const Macro& macro, Scope& scope);
  /// Macros hold their scope by its address: it and those around it live as long as the rendering.
  void keep(Scope& scope);

  const Template& template_;
  Budget& budget_;
  const std::time_t now_;
  Writer* out_ = nullptr;
  const Value* block_input_ = nullptr;  // of the filter block that is applied
  Symbol loop_symbol_ = -1;
  uint32_t at_ = 0;  // the offset of what is evaluated, for errors
  int depth_ = 0;
  std::vector<std::shared_ptr<Scope>> kept_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::unique_ptr<Loop>> loops_;
};

/// a op b, -a and a[start:stop:step], as Python has them.
Value binary(std::string_view op, const Value& a, const Value& b, Interpreter& interpreter);
Value negative(const Value& a);
Value slice(const Value& v, const Value& start, const Value& stop, const Value& step,
            Budget& budget);

}  // namespace nanovllm::jinja
