#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/text/jinja_value.h"

namespace nanovllm::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<Stmt>;

/// A variable's name as a number: its place in Template::names.
using Symbol = int;

/// What the arguments of calls, filters and tests are written as: f(a, k=b, *c, **d).
struct CallArgs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;       // null where absent
  ExprPtr star_star;  // null where absent
};

struct Expr {
  enum class Kind {
    kConstant,     // value
    kName,         // symbol
    kTuple,        // operands
    kList,         // operands
    kDict,         // operands: key, value, key, value ...
    kAttribute,    // operands[0] . value
    kItem,         // operands[0] [ operands[1] ]
    kSlice,        // operands[0] [ operands[1] : operands[2] : operands[3] ], null where absent
    kCall,         // operands[0] ( args )
    kFilter,       // operands[0] | value ( args ); operands[0] is null in a filter block
    kTest,         // operands[0] is value ( args )
    kNot,          // not operands[0]
    kNegative,     // - operands[0]
    kBinary,       // operands[0] ops[0] operands[1]
    kCompare,      // operands[0] ops[0] operands[1] ops[1] operands[2] ...
    kAnd,          // operands[0], operands[1]
    kOr,           // operands[0], operands[1]
    kConcat,       // operands joined by ~
    kConditional,  // operands[1] if operands[0] else operands[2], null where absent
    kNamespaceRef  // as a target only: symbol . value
  };
  Kind kind;
  uint32_t offset;  // in the source
  int depth = 1;    // of the tree below, bounded since walking it recurses
  Value value = {};
  Symbol symbol = -1;
  std::vector<ExprPtr> operands = {};
  std::vector<std::string> ops = {};
  CallArgs args = {};
  const Builtin* builtin = nullptr;  // the filter or test; null for one that does not exist
};

struct Parameter {
  std::string name;
  Symbol symbol = -1;
  ExprPtr otherwise = {};  // null where it has no default
};

/// A macro, or the body of a call block.
struct Macro {
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  Symbol caller = -1;  // these three: -1 where the body does not mention them
  Symbol varargs = -1;
  Symbol kwargs = -1;
};

struct Stmt {
  enum class Kind {
    kText,      // text
    kOutput,    // expr
    kIf,        // branches; a null condition is the else
    kFor,       // target in expr if test, body, otherwise
    kSet,       // target = expr
    kSetBlock,  // target = body, through the filters of expr where there are any
    kMacro,     // macro, kept in the variable `symbol`
    kCall,      // expr is the call, macro the caller's body
    kFilter,    // body through the filters of expr
    kWith,      // assignments, body
    kScope,     // body with variables of its own
    kBreak,
    kContinue
  };
  Kind kind;
  uint32_t offset;
  std::string text = {};
  ExprPtr target = {};
  ExprPtr expr = {};
  ExprPtr test = {};
  Symbol symbol = -1;
  bool recursive = false;
  Body body = {};
  Body otherwise = {};
  std::vector<std::pair<ExprPtr, Body>> branches = {};
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments = {};
  std::unique_ptr<Macro> macro = {};
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

}  // namespace nanovllm::jinja
