#include "nanovllm/text/jinja_parser.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/text/jinja_expressions.h"
#include "nanovllm/text/jinja_text.h"

namespace nanovllm::jinja {

namespace {

/// Statements.
class Parser : private ExpressionParser {
 public:
  Parser(std::string_view source, std::vector<std::string>& names)
      : ExpressionParser(source, names) {}

  /// Up to a tag named in `ends`, whose name is the next token; with none, up to the end of the
  /// template.
  Body parse_body(Names ends) {
    const Level level(*this);
    Body body;
    for (;;) {
      const Token& token = take();
      if (token.type == Type::kData) {
        body.push_back({.kind = Stmt::Kind::kText, .offset = token.offset, .text = token.text});
      } else if (token.type == Type::kVariableBegin) {
        body.push_back({.kind = Stmt::Kind::kOutput, .offset = now().offset});
        body.back().expr = parse_tuple();
        expect(Type::kVariableEnd, "'}}'");
      } else if (token.type == Type::kBlockBegin) {
        if (is_name(ends)) return body;
        body.push_back(parse_statement());
        expect(Type::kBlockEnd, "'%}'");
      } else {
        if (ends.size() == 0) return body;
        error(fmt::format("expected {{% {} %}}, got the end of the template",
                          fmt::join(ends, " %} or {% ")),
              token.offset);
      }
    }
  }

 private:
  /// Behind what opens a block: its body.
  Body parse_block(Names ends) {
    skip_op(":");
    expect(Type::kBlockEnd, "'%}'");
    return parse_body(ends);
  }
  Body parse_whole_block(std::string_view end) {
    Body body = parse_block({end});
    take();
    return body;
  }

  Stmt parse_statement() {
    const uint32_t offset = now().offset;
    const std::string tag = expect_name();
    Stmt stmt{.kind = Stmt::Kind::kScope, .offset = offset};
    if (tag == "if") {
      parse_if(stmt);
    } else if (tag == "for") {
      parse_for(stmt);
    } else if (tag == "set") {
      parse_set(stmt);
    } else if (tag == "macro") {
      parse_macro(stmt);
    } else if (tag == "call") {
      parse_call_block(stmt);
    } else if (tag == "filter") {
      stmt.kind = Stmt::Kind::kFilter;
      stmt.expr = parse_filters(nullptr, /*inline_first=*/true);
      stmt.body = parse_whole_block("endfilter");
    } else if (tag == "with") {
      parse_with(stmt);
    } else if (tag == "generation") {
      // transformers' mark for what the assistant wrote; as a call block it has its own variables.
      const int loops = std::exchange(loops_, 0);
      stmt.body = parse_whole_block("endgeneration");
      loops_ = loops;
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) error(fmt::format("'{}' outside of a loop", tag), offset);
      stmt.kind = tag == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
    } else {
      const Names refused = {"include", "import", "from", "extends", "block"};
      const bool known = std::ranges::find(refused, tag) != refused.end();
      error(known ? fmt::format("'{}' is not supported: a chat template is one file", tag)
                  : fmt::format("unknown tag {}", quote(tag)),
            offset);
    }
    return stmt;
  }

  void parse_if(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kIf;
    std::string tag = "if";
    while (tag != "endif") {
      ExprPtr condition = tag == "else" ? nullptr : parse_tuple(/*with_condition=*/false);
      Body body = tag == "else" ? parse_block({"endif"}) : parse_block({"elif", "else", "endif"});
      stmt.branches.emplace_back(std::move(condition), std::move(body));
      tag = take().text;
    }
  }

  void parse_for(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kFor;
    ++loops_;
    stmt.target = parse_target(false, {"in"});
    if (!skip_name("in")) unexpected("'in'");
    stmt.expr = parse_tuple(/*with_condition=*/false, {"recursive"});
    if (skip_name("if")) stmt.test = parse_expression();
    stmt.recursive = skip_name("recursive");
    stmt.body = parse_block({"else", "endfor"});
    --loops_;
    if (take().text == "else") stmt.otherwise = parse_whole_block("endfor");
  }

  void parse_set(Stmt& stmt) {
    stmt.target = parse_target(/*with_namespace=*/true);
    if (skip_op("=")) {
      stmt.kind = Stmt::Kind::kSet;
      stmt.expr = parse_tuple();
    } else {
      stmt.kind = Stmt::Kind::kSetBlock;
      stmt.expr = parse_filters(nullptr);
      stmt.body = parse_whole_block("endset");
    }
  }

  void parse_with(Stmt& stmt) {
    stmt.kind = Stmt::Kind::kWith;
    while (now().type != Type::kBlockEnd) {
      ExprPtr target = parse_target();
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
      Parameter parameter{expect_name()};
      parameter.symbol = symbol(parameter.name);
      if (skip_op("=")) parameter.otherwise = parse_expression();
      else if (!macro.parameters.empty() && macro.parameters.back().otherwise != nullptr)
        error("a parameter without a default follows one that has it", offset);
      macro.parameters.push_back(std::move(parameter));
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
    for (const Parameter& parameter : macro.parameters)
      for (Symbol* special : {&macro.caller, &macro.varargs, &macro.kwargs})
        if (parameter.symbol == *special) *special = -1;
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
};

}  // namespace

Template::Template(std::string_view source, std::string where)
    : source_(normalize_source(source)), where_(std::move(where)) {
  require(is_utf8(source), "{}: not UTF-8", where_);
  try {
    body_ = Parser(source_, names_).parse_body({});
  } catch (const TemplateError& error) {
    report(error);
  }
}

void Template::report(const TemplateError& error) const {
  const std::string_view before = std::string_view(source_).substr(0, error.offset);
  const size_t line = before.rfind('\n') + 1;
  fail("{}, line {}, column {}: {}", where_, std::ranges::count(before, '\n') + 1,
       count_code_points(before.substr(line)) + 1, error.what());
}

}  // namespace nanovllm::jinja
