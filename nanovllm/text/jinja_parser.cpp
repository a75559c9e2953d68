#include "nanovllm/text/jinja_parser.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "nanovllm/base/check.h"
#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_lexer.h"
#include "nanovllm/text/jinja_text.h"

namespace nanovllm::jinja {

namespace {

using Type = Token::Type;
using Names = std::initializer_list<std::string_view>;

// Of brackets within brackets, blocks within blocks and chains of operators: all of them become
// recursion.
constexpr int kMaxDepth = 200;

/// Recursive descent with the precedence of Jinja2's own grammar.
class Parser {
 public:
  Parser(std::string_view source, std::vector<std::string>& names)
      : tokens_(tokenize(source)), names_(names) {}

  Body parse() {
    Body body = parse_body({});
    if (!unknown_.empty()) throw unknown_[0];
    return body;
  }

 private:
  // ---- tokens ----

  const Token& now() const { return tokens_[pos_]; }
  const Token& ahead() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = tokens_[pos_];
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return token;
  }
  static bool is(const Token& token, Type type, std::string_view text) {
    return token.type == type && token.text == text;
  }
  bool is_op(std::string_view op) const { return is(now(), Type::kOperator, op); }
  bool is_name(std::string_view name) const { return is(now(), Type::kName, name); }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    take();
    return true;
  }

  [[noreturn]] void error(const std::string& what, uint32_t offset) const {
    throw TemplateError(what, offset);
  }
  static std::string describe(const Token& token) {
    return token.type == Type::kEnd ? "the end of the template" : quote(token.text);
  }
  [[noreturn]] void unexpected(std::string_view wanted) const {
    error(fmt::format("expected {}, got {}", wanted, describe(now())), now().offset);
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
  }
  std::string expect_name() {
    if (now().type != Type::kName) unexpected("a name");
    return take().text;
  }
  void expect(Type type, std::string_view what) {
    if (now().type != type) unexpected(what);
    take();
  }

  Symbol symbol(const std::string& name) {
    const auto [it, is_new] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
    if (is_new) names_.push_back(name);
    return it->second;
  }

  // ---- nodes ----

  struct Level {
    explicit Level(Parser& parser) : depth(parser.depth_) {
      if (++depth > kMaxDepth)
        parser.error(fmt::format("nested deeper than {} levels", kMaxDepth), parser.now().offset);
    }
    ~Level() { --depth; }
    int& depth;
  };

  template <class... Operands>
  ExprPtr make(Expr::Kind kind, uint32_t offset, Operands... operands) {
    auto node = std::make_unique<Expr>(Expr{kind, offset});
    (add_operand(*node, std::move(operands)), ...);
    return node;
  }
  void add_operand(Expr& node, ExprPtr operand) {
    deepen(node, operand);
    node.operands.push_back(std::move(operand));
  }
  void deepen(Expr& node, const ExprPtr& part) {
    if (part == nullptr) return;
    node.depth = std::max(node.depth, part->depth + 1);
    if (node.depth > kMaxDepth)
      error(fmt::format("an expression is nested deeper than {} levels", kMaxDepth), node.offset);
  }
  ExprPtr make_constant(uint32_t offset, Value value) {
    ExprPtr node = make(Expr::Kind::kConstant, offset);
    node->value = std::move(value);
    return node;
  }
  ExprPtr make_name(uint32_t offset, const std::string& name) {
    ExprPtr node = make(Expr::Kind::kName, offset);
    node->symbol = symbol(name);
    for (Macro* macro : macros_) {  // the ones around a nested macro or call block too
      if (name == "caller") macro->caller = node->symbol;
      if (name == "varargs") macro->varargs = node->symbol;
      if (name == "kwargs") macro->kwargs = node->symbol;
    }
    return node;
  }

  // ---- expressions ----

  ExprPtr parse_expression(bool with_condition = true) {
    const Level level(*this);
    return with_condition ? parse_conditional() : parse_or();
  }

  ExprPtr parse_conditional() {
    const size_t unknown = unknown_.size();
    ExprPtr node = parse_or();
    while (is_name("if")) {
      const uint32_t offset = take().offset;
      ExprPtr condition = parse_or();
      ExprPtr otherwise;
      if (skip_name("else")) {
        const Level level(*this);
        otherwise = parse_conditional();
      }
      unknown_.erase(unknown_.begin() + static_cast<ptrdiff_t>(unknown), unknown_.end());
      node = make(Expr::Kind::kConditional, offset, std::move(condition), std::move(node),
                  std::move(otherwise));
    }
    return node;
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (is_name("or")) {
      const uint32_t offset = take().offset;
      left = make(Expr::Kind::kOr, offset, std::move(left), parse_and());
    }
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (is_name("and")) {
      const uint32_t offset = take().offset;
      left = make(Expr::Kind::kAnd, offset, std::move(left), parse_not());
    }
    return left;
  }

  ExprPtr parse_not() {
    if (!is_name("not")) return parse_compare();
    const Level level(*this);
    const uint32_t offset = take().offset;
    return make(Expr::Kind::kNot, offset, parse_not());
  }

  std::optional<std::string> comparison() {
    for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="})
      if (skip_op(op)) return std::string(op);
    if (skip_name("in")) return "in";
    if (is_name("not") && is(ahead(), Type::kName, "in")) {
      take();
      take();
      return "not in";
    }
    return std::nullopt;
  }

  ExprPtr parse_compare() {
    ExprPtr left = parse_binary(0);
    uint32_t offset = now().offset;
    std::optional<std::string> op = comparison();
    if (!op) return left;
    ExprPtr node = make(Expr::Kind::kCompare, offset, std::move(left));
    for (; op; op = comparison()) {
      node->ops.push_back(*op);
      add_operand(*node, parse_binary(0));
    }
    return node;
  }

  /// Sums, then ~, then products, then powers; all of them from left to right.
  ExprPtr parse_binary(int precedence) {
    static const std::array<std::vector<std::string_view>, 4> kLevels = {
        {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}}};
    if (precedence == static_cast<int>(kLevels.size())) return parse_unary(true);
    const auto& ops = kLevels[static_cast<size_t>(precedence)];
    ExprPtr left = parse_binary(precedence + 1);
    while (now().type == Type::kOperator && std::ranges::find(ops, now().text) != ops.end()) {
      const Token& op = take();
      ExprPtr right = parse_binary(precedence + 1);
      if (op.text == "~" && left->kind == Expr::Kind::kConcat) {
        add_operand(*left, std::move(right));
      } else if (op.text == "~") {
        left = make(Expr::Kind::kConcat, op.offset, std::move(left), std::move(right));
      } else {
        left = make(Expr::Kind::kBinary, op.offset, std::move(left), std::move(right));
        left->ops.push_back(op.text);
      }
    }
    return left;
  }

  ExprPtr parse_unary(bool with_filter) {
    ExprPtr node;
    if (is_op("-") || is_op("+")) {
      const Level level(*this);
      const Token& op = take();
      node = make(op.text == "-" ? Expr::Kind::kNegative : Expr::Kind::kPositive, op.offset,
                  parse_unary(false));
    } else {
      node = parse_primary();
    }
    node = parse_postfix(std::move(node));
    return with_filter ? parse_filters_and_tests(std::move(node)) : std::move(node);
  }

  ExprPtr parse_primary() {
    const Token& token = now();
    switch (token.type) {
      case Type::kName:
        take();
        if (token.text == "true" || token.text == "True") return make_constant(token.offset, true);
        if (token.text == "false" || token.text == "False")
          return make_constant(token.offset, false);
        if (token.text == "none" || token.text == "None")
          return make_constant(token.offset, None{});
        return make_name(token.offset, token.text);
      case Type::kString: {
        std::string text;
        while (now().type == Type::kString) text += take().text;
        return make_constant(token.offset, std::move(text));
      }
      case Type::kInteger:
      case Type::kFloat:
        return make_constant(token.offset, take().value);
      default:
        break;
    }
    const uint32_t offset = token.offset;
    if (skip_op("(")) {
      ExprPtr node = parse_tuple(true, {}, /*in_parentheses=*/true);
      expect_op(")");
      return node;
    }
    if (skip_op("[")) {
      ExprPtr node = make(Expr::Kind::kList, offset);
      while (!is_op("]")) {
        add_operand(*node, parse_expression());
        if (!is_op("]")) expect_op(",");
      }
      take();
      return node;
    }
    if (skip_op("{")) {
      ExprPtr node = make(Expr::Kind::kDict, offset);
      while (!is_op("}")) {
        add_operand(*node, parse_expression());
        expect_op(":");
        add_operand(*node, parse_expression());
        if (!is_op("}")) expect_op(",");
      }
      take();
      return node;
    }
    unexpected("an expression");
  }

  bool ends_tuple(Names end_names) const {
    return now().type == Type::kVariableEnd || now().type == Type::kBlockEnd || is_op(")") ||
           std::ranges::any_of(end_names, [&](std::string_view name) { return is_name(name); });
  }

  /// One expression, or a tuple where commas follow.
  ExprPtr parse_tuple(bool with_condition, Names end_names = {}, bool in_parentheses = false) {
    const uint32_t offset = now().offset;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    while (!ends_tuple(end_names)) {
      items.push_back(parse_expression(with_condition));
      if (!skip_op(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return std::move(items[0]);
    if (!is_tuple && !in_parentheses) unexpected("an expression");
    ExprPtr node = make(Expr::Kind::kTuple, offset);
    for (ExprPtr& item : items) add_operand(*node, std::move(item));
    return node;
  }

  ExprPtr parse_postfix(ExprPtr node) {
    for (;;) {
      const uint32_t offset = now().offset;
      if (skip_op(".")) {
        const Token& token = take();
        if (token.type == Type::kInteger) {
          node = make(Expr::Kind::kItem, offset, std::move(node),
                      make_constant(token.offset, token.value));
        } else if (token.type == Type::kName) {
          node = make(Expr::Kind::kAttribute, token.offset, std::move(node));
          node->value = token.text;
        } else {
          error(fmt::format("expected a name or a number, got {}", describe(token)), token.offset);
        }
      } else if (skip_op("[")) {
        node = parse_subscript(std::move(node), offset);
      } else if (is_op("(")) {
        node = parse_call(std::move(node));
      } else {
        return node;
      }
    }
  }

  ExprPtr parse_subscript(ExprPtr node, uint32_t offset) {
    const auto part = [&]() -> ExprPtr {
      return is_op(":") || is_op("]") ? nullptr : parse_expression();
    };
    ExprPtr first = part();
    if (is_op(":")) {
      take();
      ExprPtr stop = part();
      ExprPtr step = skip_op(":") ? part() : nullptr;
      expect_op("]");
      return make(Expr::Kind::kSlice, offset, std::move(node), std::move(first), std::move(stop),
                  std::move(step));
    }
    if (first == nullptr) unexpected("an expression");
    if (is_op(",")) {
      ExprPtr tuple = make(Expr::Kind::kTuple, offset, std::move(first));
      while (skip_op(",") && !is_op("]")) add_operand(*tuple, parse_expression());
      first = std::move(tuple);
    }
    expect_op("]");
    return make(Expr::Kind::kItem, offset, std::move(node), std::move(first));
  }

  ExprPtr parse_call(ExprPtr callee) {
    ExprPtr node = make(Expr::Kind::kCall, now().offset, std::move(callee));
    parse_args(*node);
    return node;
  }

  void parse_args(Expr& node) {
    CallArgs& args = node.args;
    const uint32_t offset = now().offset;
    const auto order = [&](bool fine) {
      if (!fine) error("arguments out of order: positional, named, *list, **dictionary", offset);
    };
    expect_op("(");
    while (!is_op(")")) {
      ExprPtr* slot;
      if (skip_op("*")) {
        order(args.star == nullptr && args.star_star == nullptr);
        slot = &args.star;
      } else if (skip_op("**")) {
        order(args.star_star == nullptr);
        slot = &args.star_star;
      } else if (now().type == Type::kName && is(ahead(), Type::kOperator, "=")) {
        order(args.star_star == nullptr);
        slot = &args.named.emplace_back(take().text, nullptr).second;
        take();
      } else {
        order(args.star == nullptr && args.star_star == nullptr && args.named.empty());
        slot = &args.positional.emplace_back();
      }
      *slot = parse_expression();
      deepen(node, *slot);
      if (!is_op(")")) expect_op(",");
    }
    take();
  }

  ExprPtr parse_filters_and_tests(ExprPtr node) {
    for (;;) {
      if (is_op("|")) node = parse_filters(std::move(node));
      else if (is_name("is")) node = parse_test(std::move(node));
      else if (is_op("(")) node = parse_call(std::move(node));
      else return node;
    }
  }

  std::string parse_dotted_name() {
    std::string name = expect_name();
    while (skip_op(".")) name += "." + expect_name();
    return name;
  }

  /// Jinja2 refuses unknown filters and tests, but inside of conditions only once they are reached.
  void resolve(Expr& node, const char* what, const std::string& name, const Builtin* builtin) {
    node.value = name;
    node.builtin = builtin;
    if (builtin == nullptr && !soft_)
      unknown_.emplace_back(fmt::format("no {} named {}", what, quote(name)), node.offset);
  }

  /// `| name(args) | ...`; in a filter block the first one stands without its "|".
  ExprPtr parse_filters(ExprPtr node, bool inline_first = false) {
    while (inline_first || skip_op("|")) {
      inline_first = false;
      node = make(Expr::Kind::kFilter, now().offset, std::move(node));
      const std::string name = parse_dotted_name();
      if (is_op("(")) parse_args(*node);
      resolve(*node, "filter", name, find_filter(name));
    }
    return node;
  }

  ExprPtr parse_test(ExprPtr operand) {
    const uint32_t offset = take().offset;
    const bool negated = skip_name("not");
    ExprPtr node = make(Expr::Kind::kTest, now().offset, std::move(operand));
    const std::string name = parse_dotted_name();
    const Token& next = now();
    const bool operand_follows = (next.type == Type::kName && next.text != "else" &&
                                  next.text != "or" && next.text != "and") ||
                                 next.type == Type::kString || next.type == Type::kInteger ||
                                 next.type == Type::kFloat || is_op("[") || is_op("{");
    if (is_op("(")) {
      parse_args(*node);
    } else if (operand_follows) {
      if (is_name("is")) error("tests with 'is' cannot be chained", next.offset);
      node->args.positional.push_back(parse_postfix(parse_primary()));
      deepen(*node, node->args.positional.back());
    }
    resolve(*node, "test", name, find_test(name));
    return negated ? make(Expr::Kind::kNot, offset, std::move(node)) : std::move(node);
  }

  // ---- targets ----

  ExprPtr parse_target_name(bool with_namespace) {
    const uint32_t offset = now().offset;
    if (skip_op("(")) {
      ExprPtr node = parse_target(with_namespace, {});
      expect_op(")");
      return node;
    }
    const std::string name = expect_name();
    if (name == "true" || name == "True" || name == "false" || name == "False" || name == "none" ||
        name == "None")
      error(fmt::format("cannot assign to {}", name), offset);
    if (with_namespace && skip_op(".")) {
      ExprPtr node = make(Expr::Kind::kNamespaceRef, offset);
      node->symbol = symbol(name);
      node->value = expect_name();
      return node;
    }
    if (name == "loop" && loops_ > 0) error("cannot assign to the special variable loop", offset);
    ExprPtr node = make(Expr::Kind::kName, offset);
    node->symbol = symbol(name);
    return node;
  }

  ExprPtr parse_target(bool with_namespace, Names end_names) {
    const Level level(*this);
    const uint32_t offset = now().offset;
    ExprPtr first = parse_target_name(with_namespace);
    if (!is_op(",")) return first;
    ExprPtr tuple = make(Expr::Kind::kTuple, offset, std::move(first));
    while (skip_op(",") && !ends_tuple(end_names) && !is_op("="))
      add_operand(*tuple, parse_target_name(with_namespace));
    return tuple;
  }

  // ---- statements ----

  /// Up to a tag named in `ends`, whose name is the next token; or, with none, up to the end of the
  /// template.
  Body parse_body(Names ends) {
    const Level level(*this);
    Body body;
    for (;;) {
      const Token& token = take();
      switch (token.type) {
        case Type::kData:
          body.push_back({Stmt::Kind::kText, token.offset});
          body.back().text = token.text;
          break;
        case Type::kVariableBegin:
          body.push_back({Stmt::Kind::kOutput, now().offset});
          body.back().expr = parse_tuple(true);
          expect(Type::kVariableEnd, "'}}'");
          break;
        case Type::kBlockBegin:
          if (std::ranges::any_of(ends, [&](std::string_view end) { return is_name(end); }))
            return body;
          parse_statement(body);
          expect(Type::kBlockEnd, "'%}'");
          break;
        default:
          if (ends.size() == 0) return body;
          error(fmt::format("expected {{% {} %}}, got the end of the template",
                            fmt::join(ends, " %} or {% ")),
                token.offset);
      }
    }
  }

  /// Behind a tag that opens a block: its body, with unknown filters refused (`soft` false) or left
  /// for later.
  Body parse_block(Names ends, bool soft = false) {
    skip_op(":");
    expect(Type::kBlockEnd, "'%}'");
    const bool was_soft = std::exchange(soft_, soft);
    Body body = parse_body(ends);
    soft_ = was_soft;
    return body;
  }
  Body parse_whole_block(std::string_view end) {
    Body body = parse_block({end});
    take();
    return body;
  }

  void parse_statement(Body& out) {
    const Token& tag = now();
    if (tag.type != Type::kName) unexpected("the name of a tag");
    take();
    Stmt stmt{Stmt::Kind::kScope, tag.offset};
    if (tag.text == "if") {
      parse_if(stmt);
    } else if (tag.text == "for") {
      parse_for(stmt);
    } else if (tag.text == "set") {
      parse_set(stmt);
    } else if (tag.text == "macro") {
      parse_macro(stmt);
    } else if (tag.text == "call") {
      parse_call_block(stmt);
    } else if (tag.text == "filter") {
      stmt.kind = Stmt::Kind::kFilter;
      stmt.expr = parse_filters(nullptr, true);
      stmt.body = parse_whole_block("endfilter");
    } else if (tag.text == "with") {
      parse_with(stmt);
    } else if (tag.text == "generation") {
      // transformers' mark for what the assistant wrote; as a call block it has its own variables.
      const int loops = std::exchange(loops_, 0);
      stmt.body = parse_whole_block("endgeneration");
      loops_ = loops;
    } else if (tag.text == "print") {
      while (now().type != Type::kBlockEnd) {
        out.push_back({Stmt::Kind::kOutput, now().offset});
        out.back().expr = parse_expression();
        if (now().type != Type::kBlockEnd) expect_op(",");
      }
      return;
    } else if (tag.text == "break" || tag.text == "continue") {
      if (loops_ == 0) error(fmt::format("'{}' outside of a loop", tag.text), tag.offset);
      stmt.kind = tag.text == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
    } else if (tag.text == "include" || tag.text == "import" || tag.text == "from" ||
               tag.text == "extends" || tag.text == "block" || tag.text == "autoescape") {
      error(fmt::format("'{}' is not supported in a chat template", tag.text), tag.offset);
    } else {
      error(fmt::format("unknown tag {}", quote(tag.text)), tag.offset);
    }
    out.push_back(std::move(stmt));
  }

  void parse_if(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kIf;
    const bool was_soft = soft_;
    for (;;) {
      soft_ = true;
      ExprPtr condition = parse_tuple(false);
      soft_ = was_soft;
      Body body = parse_block({"elif", "else", "endif"}, /*soft=*/true);
      stmt.branches.emplace_back(std::move(condition), std::move(body));
      const std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") {
        stmt.branches.emplace_back(nullptr, parse_block({"endif"}, /*soft=*/true));
        take();
      }
      return;
    }
  }

  void parse_for(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kFor;
    ++loops_;
    stmt.target = parse_target(false, {"in"});
    if (!skip_name("in")) unexpected("'in'");
    stmt.expr = parse_tuple(false, {"recursive"});
    if (skip_name("if")) stmt.test = parse_expression();
    stmt.recursive = skip_name("recursive");
    stmt.body = parse_block({"else", "endfor"});
    --loops_;
    if (take().text == "else") stmt.otherwise = parse_whole_block("endfor");
  }

  void parse_set(Stmt& stmt) {
    stmt.target = parse_target(true, {});
    if (skip_op("=")) {
      stmt.kind = Stmt::Kind::kSet;
      stmt.expr = parse_tuple(true);
    } else {
      stmt.kind = Stmt::Kind::kSetBlock;
      stmt.expr = parse_filters(nullptr);
      stmt.body = parse_whole_block("endset");
    }
  }

  void parse_with(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kWith;
    while (now().type != Type::kBlockEnd) {
      ExprPtr target = parse_target_name(false);
      expect_op("=");
      stmt.assignments.emplace_back(std::move(target), parse_expression());
      if (now().type != Type::kBlockEnd) expect_op(",");
    }
    stmt.body = parse_whole_block("endwith");
  }

  void parse_parameters(Macro& macro) {
    expect_op("(");
    while (!is_op(")")) {
      const uint32_t offset = now().offset;
      const std::string name = expect_name();
      ExprPtr otherwise;
      if (skip_op("=")) otherwise = parse_expression();
      else if (!macro.parameters.empty() && macro.parameters.back().second != nullptr)
        error("a parameter without a default follows one that has it", offset);
      macro.parameters.emplace_back(symbol(name), std::move(otherwise));
      macro.parameter_names.push_back(name);
      if (!is_op(")")) expect_op(",");
    }
    take();
  }

  void parse_macro_body(Macro& macro, std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    macros_.push_back(&macro);
    macro.body = parse_whole_block(end);
    macros_.pop_back();
    loops_ = loops;
    for (const auto& parameter : macro.parameters)
      for (Symbol* special : {&macro.caller, &macro.varargs, &macro.kwargs})
        if (parameter.first == *special) *special = -1;
  }

  void parse_macro(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kMacro;
    stmt.macro = std::make_unique<Macro>();
    stmt.macro->name = expect_name();
    stmt.symbol = symbol(stmt.macro->name);
    parse_parameters(*stmt.macro);
    parse_macro_body(*stmt.macro, "endmacro");
  }

  void parse_call_block(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kCall;
    stmt.macro = std::make_unique<Macro>();
    stmt.macro->name = "caller";
    if (is_op("(")) parse_parameters(*stmt.macro);
    stmt.expr = parse_expression();
    if (stmt.expr->kind != Expr::Kind::kCall) error("expected a call", stmt.offset);
    parse_macro_body(*stmt.macro, "endcall");
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  std::vector<std::string>& names_;
  std::map<std::string, Symbol> symbols_;
  std::vector<Macro*> macros_;  // around the current token
  int loops_ = 0;               // around the current token, within its macro
  int depth_ = 0;
  bool soft_ = false;                   // directly in an if block
  std::vector<TemplateError> unknown_;  // filters and tests outside of conditions
};

}  // namespace

Template::Template(std::string_view source, std::string where)
    : source_(normalize_source(source)), where_(std::move(where)) {
  try {
    body_ = Parser(source_, names_).parse();
  } catch (const TemplateError& error) {
    report(error);
  }
}

void Template::report(const TemplateError& error) const {
  if (error.offset == TemplateError::kUnknown) fail("{}: {}", where_, error.what());
  const std::string_view before = std::string_view(source_).substr(0, error.offset);
  const size_t line = before.rfind('\n') + 1;
  fail("{}, line {}, column {}: {}", where_, std::ranges::count(before, '\n') + 1,
       count_code_points(before.substr(line)) + 1, error.what());
}

}  // namespace nanovllm::jinja
