#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/text/jinja/expressions.h"

// Statements and whole templates.
namespace nanovllm::jinja {

namespace {

// The tree may take 100 times the memory of the source. The longest published template has 17,000
// bytes.
constexpr size_t kMaxBytes = size_t{1} << 20;

constexpr size_t kMaxMessage = 2000;

/// Gives the body a scope of variables of its own.
Body scoped(Body body) {
  return [body = std::move(body)](Scope& s) { return body(s.interpreter.new_scope(&s)); };
}

/// A body that writes the value of an expression.
Body output(Expr expr) {
  return [expr = std::move(expr)](Scope& s) {
    write(*s.interpreter.out, expr(s));
    return Flow::kNormal;
  };
}

Value make_macro(const Macro& macro, Scope& scope) {
  return make_function({.macro = &macro, .scope = &scope}, scope.interpreter.budget);
}

class Parser : ExpressionParser {
 public:
  Parser(std::string_view source, std::vector<std::string>& names)
      : ExpressionParser(source, names) {}

  Body parse() {
    try {
      return parse_body({});
    } catch (TemplateError& error) {
      if (error.offset == TemplateError::kUnknown) error.offset = now().offset;
      throw;
    }
  }

 private:
  /// Parses up to a tag named in `ends`, whose name is then the next token, or, if `ends` is empty,
  /// up to the end of the template.
  Body parse_body(Names ends) {
    const Level level = nested();
    std::vector<Body> parts;
    for (;;) {
      num_nodes_ = 0;
      if (now().type == Type::kData) {
        const Token& token = take();
        parts.push_back(at(token.offset, [text = token.text](Scope& s) {
          s.interpreter.out->add(text);
          return Flow::kNormal;
        }));
      } else if (skip_op("{{")) {
        const size_t offset = now().offset;
        parts.push_back(at(offset, output(parse_tuple())));
        expect_op("}}");
      } else if (skip_op("{%")) {
        if (is_name(ends)) break;
        parts.push_back(parse_statement());
        expect_op("%}");
      } else if (ends.size() == 0) {
        break;
      } else {
        unexpected(fmt::format("{{% {} %}}", nanovllm::join(ends, " %} or {% ")));
      }
    }
    return [parts = std::move(parts)](Scope& s) {
      for (const Body& part : parts)
        if (const Flow flow = part(s); flow != Flow::kNormal) return flow;
      return Flow::kNormal;
    };
  }

  /// The body of a block, from the end of its first tag on.
  Body parse_block(Names ends) {
    skip_op(":");
    expect_op("%}");
    return parse_body(ends);
  }

  Body parse_whole_block(std::string_view end) {
    Body body = parse_block({end});
    take();
    return body;
  }

  Body parse_statement() {
    const size_t offset = now().offset;
    const std::string tag = expect_name();
    if (tag == "if") return at(offset, parse_if());
    if (tag == "for") return at(offset, parse_for());
    if (tag == "set") return at(offset, parse_set());
    if (tag == "macro") return at(offset, parse_macro());
    if (tag == "call") return at(offset, parse_call_block());
    if (tag == "with") return at(offset, parse_with());
    if (tag == "filter") {
      const Target target = [](Scope& s, const Value& text) { write(*s.interpreter.out, text); };
      return at(offset, parse_filtered_block(target, "endfilter"));
    }
    if (tag == "generation") {
      // transformers' mark for text of the assistant. Like a call block it has its own variables.
      const int num_loops = std::exchange(num_loops_, 0);
      Body body = parse_whole_block("endgeneration");
      num_loops_ = num_loops;
      return at(offset, scoped(std::move(body)));
    }
    if (tag == "break" || tag == "continue") {
      if (num_loops_ == 0) raise_at(offset, "'{}' outside of a loop", tag);
      return [flow = tag == "break" ? Flow::kBreak : Flow::kContinue](Scope&) { return flow; };
    }
    for (const char* refused : {"include", "import", "from", "extends", "block"})
      if (tag == refused)
        raise_at(offset, "'{}' is not supported: a chat template is one file", tag);
    raise_at(offset, "unknown tag {}", quote(tag));
  }

  Body parse_if() {
    std::vector<std::pair<Expr, Body>> branches;  // the else has no condition
    for (std::string tag = "if"; tag != "endif"; tag = take().text) {
      Expr condition = tag == "else" ? nullptr : parse_tuple(/*with_condition=*/false);
      Body body = tag == "else" ? parse_block({"endif"}) : parse_block({"elif", "else", "endif"});
      branches.emplace_back(std::move(condition), std::move(body));
    }
    return [branches = std::move(branches)](Scope& s) {
      for (const auto& [condition, body] : branches) {
        s.interpreter.budget.step();
        if (!condition || truthy(condition(s))) return body(s);
      }
      return Flow::kNormal;
    };
  }

  Body parse_for() {
    const auto loop = std::make_shared<ForLoop>();
    ++num_loops_;
    loop->target = parse_target(false, {"in"});
    if (!skip_name("in")) unexpected("'in'");
    loop->items = parse_tuple(/*with_condition=*/false, {"recursive"});
    if (skip_name("if")) loop->test = parse_expression();
    loop->recursive = skip_name("recursive");
    loop->body = parse_block({"else", "endfor"});
    --num_loops_;
    if (take().text == "else") loop->else_body = parse_whole_block("endfor");
    return [loop](Scope& s) {
      Values items = to_list(loop->items(s), s.interpreter.budget);
      return s.interpreter.run(*loop, s, std::move(items), /*depth=*/0);
    };
  }

  /// {% set target = value %}, or {% set target | filters %} text {% endset %}.
  Body parse_set() {
    Target target = parse_target(/*with_namespace=*/true);
    if (!skip_op("=")) return parse_filtered_block(target, "endset");
    return [target = std::move(target), expr = parse_tuple()](Scope& s) {
      target(s, expr(s));
      return Flow::kNormal;
    };
  }

  /// A block whose text passes through the filters at the current token and then to the target.
  Body parse_filtered_block(const Target& target, std::string_view end) {
    Expr filtered = [](Scope& s) { return std::exchange(s.interpreter.block_text, {}); };
    for (bool is_first = end == "endfilter"; std::exchange(is_first, false) || skip_op("|");)
      filtered = parse_builtin(std::move(filtered), "filter");
    Body body = parse_whole_block(end);
    return [target, filtered = std::move(filtered), body = std::move(body)](Scope& s) {
      Flow flow;
      Value text = s.interpreter.capture(body, s.interpreter.new_scope(&s), &flow);
      if (flow != Flow::kNormal) return flow;
      s.interpreter.block_text = std::move(text);
      target(s, filtered(s));
      return Flow::kNormal;
    };
  }

  Body parse_with() {
    std::vector<std::pair<Target, Expr>> assignments;
    while (!is_op("%}")) {
      Target target = parse_target();
      expect_op("=");
      assignments.emplace_back(std::move(target), parse_expression());
      if (!is_op("%}")) expect_op(",");
    }
    Body body = [assignments = std::move(assignments),
                 body = parse_whole_block("endwith")](Scope& s) {
      for (const auto& [target, value] : assignments) target(s, value(*s.parent));
      return body(s);
    };
    return scoped(std::move(body));
  }

  void parse_parameters(Macro& macro) {
    expect_op("(");
    parse_list(")", [&] {
      const size_t offset = now().offset;
      const std::string name = expect_name();
      Expr default_value = skip_op("=") ? parse_expression() : nullptr;
      if (!default_value && !macro.parameters.empty() && macro.parameters.back().default_value)
        raise_at(offset, "a parameter without a default follows one that has it");
      macro.parameters.push_back({name, symbol(name), std::move(default_value)});
    });
  }

  void parse_macro_body(Macro& macro, std::string_view end) {
    const int num_loops = std::exchange(num_loops_, 0);
    macros_.push_back(&macro);
    macro.body = parse_whole_block(end);
    macros_.pop_back();
    num_loops_ = num_loops;
    for (const Parameter& parameter : macro.parameters)
      if (parameter.symbol <= kKwargs) macro.mentions[parameter.symbol] = false;
  }

  Body parse_macro() {
    const auto macro = std::make_shared<Macro>(Macro{expect_name()});
    parse_parameters(*macro);
    parse_macro_body(*macro, "endmacro");
    return [macro, name = symbol(macro->name)](Scope& s) {
      s.set(name, make_macro(*macro, s));
      return Flow::kNormal;
    };
  }

  /// {% call(parameters) f(args) %} body {% endcall %}: a call with one more argument, `caller`.
  Body parse_call_block() {
    const auto macro = std::make_shared<Macro>(Macro{"caller"});
    if (is_op("(")) parse_parameters(*macro);
    const size_t offset = now().offset;
    Expr callee = parse_postfix(parse_primary(), /*with_call=*/false);
    CallArgs args = parse_args();
    args.parts.push_back(
        {CallArgs::Kind::kNamed, "caller", [macro](Scope& s) { return make_macro(*macro, s); }});
    parse_macro_body(*macro, "endcall");
    return output(call(offset, std::move(callee), std::move(args)));
  }
};

}  // namespace

Template::Template(std::string_view source, std::string where) : where_(std::move(where)) {
  require_utf8(source, where_);
  // Like Jinja2, turn line ends into "\n" before anything else, and drop one at the very end.
  for (char previous = '\0'; const char c : source) {
    if (c != '\n' || previous != '\r') source_ += c == '\r' ? '\n' : c;
    previous = c;
  }
  if (source_.ends_with('\n')) source_.pop_back();
  try {
    if (source.size() > kMaxBytes) raise_at(0, "a template of more than {} bytes", kMaxBytes);
    body_ = Parser(source_, names_).parse();
  } catch (const TemplateError& error) {
    report(error);
  }
}

void Template::report(const TemplateError& error) const {
  const std::string_view before = std::string_view(source_).substr(0, error.offset);
  const size_t line = before.rfind('\n') + 1;
  // The error may quote a text of megabytes, which may end with a part of a character.
  std::string what;
  append_utf8(what, std::string_view(error.what()).substr(0, kMaxMessage), /*at_end=*/false);
  if (std::string_view(error.what()).size() > kMaxMessage) what += "...";
  fail("{}, line {}, column {}: {}", where_, std::ranges::count(before, '\n') + 1,
       count_code_points(before.substr(line)) + 1, what);
}

}  // namespace nanovllm::jinja
