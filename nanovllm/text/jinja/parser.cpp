#include "nanovllm/text/jinja/parser.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/text/jinja/text.h"

namespace nanovllm::jinja {

namespace {

// Variables are looked up one after another.
constexpr size_t kMaxNames = 1000;

// Parsed, each byte may become a hundred. The longest published template has 17 thousand.
constexpr size_t kMaxBytes = size_t{1} << 20;

constexpr size_t kMaxMessage = 2000;

/// The body with variables of its own.
Body scoped(Body body) {
  return [body = std::move(body)](Scope& s) { return body(s.interpreter.new_scope(&s)); };
}

Value make_macro(const Macro& macro, Scope& scope) {
  return make_function({.macro = &macro, .scope = &scope}, scope.interpreter.budget);
}

}  // namespace

Args CallArgs::eval(Scope& scope, Values first) const {
  Budget& budget = scope.interpreter.budget;
  Args args{std::move(first), {}};
  for (const Expr& e : positional) args.positional.push_back(e(scope));
  for (const auto& [name, e] : named) args.named.emplace_back(name, e(scope));
  if (star)
    for (Value& v : to_list(star(scope), budget)) args.positional.push_back(std::move(v));
  if (star_star) {
    const Value v = star_star(scope);
    if (v.dict() == nullptr) raise("argument after ** must be a mapping, not {}", v.type_name());
    for (const auto& [key, value] : v.dict()->items) {
      if (!key.is_string()) raise("keywords must be strings");
      args.named.emplace_back(key.string(), value);
    }
  }
  return args;
}

const Token& Parser::take() {
  const Token& token = tokens_[pos_];
  if (pos_ + 1 < tokens_.size()) ++pos_;
  return token;
}

bool Parser::is_name(Names names) const {
  return std::ranges::any_of(names, [&](std::string_view name) { return is_name(name); });
}

void Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) unexpected(fmt::format("'{}'", op));
}

void Parser::expect(Type type, std::string_view what) {
  if (now().type != type) unexpected(what);
  take();
}

std::string Parser::expect_name() {
  if (now().type != Type::kName) unexpected("a name");
  return take().text;
}

void Parser::unexpected(std::string_view wanted) const {
  const bool at_end = now().type == Type::kEnd;
  const std::string got = at_end ? "the end of the template" : quote(now().text);
  throw TemplateError(fmt::format("expected {}, got {}", wanted, got), now().offset);
}

Symbol Parser::symbol(const std::string& name) {
  const auto [it, is_new] = symbols_.try_emplace(name, static_cast<Symbol>(names_.size()));
  if (is_new) names_.push_back(name);
  if (names_.size() > kMaxNames)
    throw TemplateError(fmt::format("more than {} different variables", kMaxNames), now().offset);
  return it->second;
}

Parser::Level::Level(Parser& parser) : depth(parser.depth_) {
  if (depth >= kMaxDepth)
    throw TemplateError(fmt::format("nested deeper than {} levels", kMaxDepth),
                        parser.now().offset);
  ++depth;
}

Body Parser::parse_body(Names ends) {
  const Level level(*this);
  std::vector<Body> parts;
  for (;;) {
    const Token& token = take();
    num_nodes_ = 0;
    if (token.type == Type::kData) {
      parts.push_back(at(token.offset, [text = token.text](Scope& s) {
        s.interpreter.out->add(text);
        return Flow::kNormal;
      }));
    } else if (token.type == Type::kVariableBegin) {
      const size_t offset = now().offset;
      parts.push_back(at(offset, [expr = parse_tuple()](Scope& s) {
        write(*s.interpreter.out, expr(s));
        return Flow::kNormal;
      }));
      expect(Type::kVariableEnd, "'}}'");
    } else if (token.type == Type::kBlockBegin && !is_name(ends)) {
      parts.push_back(parse_statement());
      expect(Type::kBlockEnd, "'%}'");
    } else if (token.type == Type::kBlockBegin || ends.size() == 0) {
      break;
    } else {
      throw TemplateError(fmt::format("expected {{% {} %}}, got the end of the template",
                                      fmt::join(ends, " %} or {% ")),
                          token.offset);
    }
  }
  return [parts = std::move(parts)](Scope& s) {
    for (const Body& part : parts)
      if (const Flow flow = part(s); flow != Flow::kNormal) return flow;
    return Flow::kNormal;
  };
}

/// Behind what opens a block: its body.
Body Parser::parse_block(Names ends) {
  skip_op(":");
  expect(Type::kBlockEnd, "'%}'");
  return parse_body(ends);
}

Body Parser::parse_whole_block(std::string_view end) {
  Body body = parse_block({end});
  take();
  return body;
}

Body Parser::parse_statement() {
  const size_t offset = now().offset;
  const std::string tag = expect_name();
  if (tag == "if") return at(offset, parse_if());
  if (tag == "for") return at(offset, parse_for());
  if (tag == "set") return at(offset, parse_set());
  if (tag == "macro") return at(offset, parse_macro());
  if (tag == "call") return at(offset, parse_call_block());
  if (tag == "filter") {
    const Target output = [](Scope& s, const Value& text) { write(*s.interpreter.out, text); };
    return at(offset, parse_filtered_block(output, "endfilter"));
  }
  if (tag == "with") return at(offset, parse_with());
  if (tag == "generation") {
    // transformers' mark for what the assistant wrote; as a call block it has its own variables.
    const int loops = std::exchange(loops_, 0);
    Body body = parse_whole_block("endgeneration");
    loops_ = loops;
    return at(offset, scoped(std::move(body)));
  }
  if (tag == "break" || tag == "continue") {
    if (loops_ == 0) throw TemplateError(fmt::format("'{}' outside of a loop", tag), offset);
    const Flow flow = tag == "break" ? Flow::kBreak : Flow::kContinue;
    return [flow](Scope&) { return flow; };
  }
  const Names refused = {"include", "import", "from", "extends", "block"};
  const bool is_known = std::ranges::find(refused, tag) != refused.end();
  throw TemplateError(is_known
                          ? fmt::format("'{}' is not supported: a chat template is one file", tag)
                          : fmt::format("unknown tag {}", quote(tag)),
                      offset);
}

Body Parser::parse_if() {
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

Body Parser::parse_for() {
  const auto loop = std::make_shared<ForLoop>();
  loop->loop = symbol("loop");
  ++loops_;
  loop->target = parse_target(false, {"in"});
  if (!skip_name("in")) unexpected("'in'");
  loop->items = parse_tuple(/*with_condition=*/false, {"recursive"});
  if (skip_name("if")) loop->test = parse_expression();
  loop->recursive = skip_name("recursive");
  loop->body = parse_block({"else", "endfor"});
  --loops_;
  if (take().text == "else") loop->otherwise = parse_whole_block("endfor");
  return [loop](Scope& s) {
    Values items = to_list(loop->items(s), s.interpreter.budget);
    return s.interpreter.run(*loop, s, std::move(items), /*depth=*/0);
  };
}

/// {% set target = value %}, or {% set target | filters %} text {% endset %}.
Body Parser::parse_set() {
  Target target = parse_target(/*with_namespace=*/true);
  if (!skip_op("=")) return parse_filtered_block(target, "endset");
  return [target = std::move(target), expr = parse_tuple()](Scope& s) {
    target(s, expr(s));
    return Flow::kNormal;
  };
}

/// A block whose text goes through filters, which stand at the current token, to the target.
Body Parser::parse_filtered_block(const Target& target, std::string_view end) {
  const Symbol input = symbol("<block>");  // no template can write such a name
  const Expr read_input = [input](Scope& s) { return *s.find(input); };
  Expr filtered = parse_filters(read_input, /*inline_first=*/end == "endfilter");
  Body body = parse_whole_block(end);
  return [target, input, filtered = std::move(filtered), body = std::move(body)](Scope& s) {
    Flow flow;
    Value text = s.interpreter.capture(body, s.interpreter.new_scope(&s), &flow);
    if (flow != Flow::kNormal) return flow;
    Scope& own = s.interpreter.new_scope(&s);
    own.set(input, std::move(text));
    target(s, filtered(own));
    return Flow::kNormal;
  };
}

Body Parser::parse_with() {
  std::vector<std::pair<Target, Expr>> assignments;
  while (now().type != Type::kBlockEnd) {
    Target target = parse_target();
    expect_op("=");
    assignments.emplace_back(std::move(target), parse_expression());
    if (now().type != Type::kBlockEnd) expect_op(",");
  }
  return [assignments = std::move(assignments), body = parse_whole_block("endwith")](Scope& s) {
    Scope& own = s.interpreter.new_scope(&s);
    for (const auto& [target, value] : assignments) target(own, value(s));
    return body(own);
  };
}

void Parser::parse_parameters(Macro& macro) {
  expect_op("(");
  while (!is_op(")")) {
    const size_t offset = now().offset;
    const std::string name = expect_name();
    Expr otherwise = skip_op("=") ? parse_expression() : nullptr;
    if (!otherwise && !macro.parameters.empty() && macro.parameters.back().otherwise)
      throw TemplateError("a parameter without a default follows one that has it", offset);
    macro.parameters.push_back({name, symbol(name), std::move(otherwise)});
    if (!is_op(")")) expect_op(",");
  }
  take();
}

void Parser::parse_macro_body(Macro& macro, std::string_view end) {
  const int loops = std::exchange(loops_, 0);
  macros_.push_back(&macro);
  macro.body = parse_whole_block(end);
  macros_.pop_back();
  loops_ = loops;
  for (const Parameter& parameter : macro.parameters)
    for (Symbol* special : {&macro.caller, &macro.varargs, &macro.kwargs})
      if (parameter.symbol == *special) *special = -1;
}

Body Parser::parse_macro() {
  const auto macro = std::make_shared<Macro>(Macro{expect_name()});
  parse_parameters(*macro);
  parse_macro_body(*macro, "endmacro");
  return [macro, name = symbol(macro->name)](Scope& s) {
    s.set(name, make_macro(*macro, s));
    return Flow::kNormal;
  };
}

/// {% call(parameters) f(args) %} body {% endcall %}: a call with one more argument, `caller`.
Body Parser::parse_call_block() {
  const auto macro = std::make_shared<Macro>(Macro{"caller"});
  if (is_op("(")) parse_parameters(*macro);
  const size_t begin = pos_;
  Expr call = parse_expression();
  if (last_call_.args == nullptr || last_call_.begin != begin || last_call_.end != pos_)
    throw TemplateError("expected a call", tokens_[begin].offset);
  last_call_.args->named.emplace_back("caller",
                                      [macro](Scope& s) { return make_macro(*macro, s); });
  parse_macro_body(*macro, "endcall");
  return [call = std::move(call)](Scope& s) {
    write(*s.interpreter.out, call(s));
    return Flow::kNormal;
  };
}

Template::Template(std::string_view source, std::string where) : where_(std::move(where)) {
  require(is_utf8(source), "{}: not UTF-8", where_);
  // As Jinja2 does before all else: line ends become "\n", and one at the very end is dropped.
  for (char previous = '\0'; const char c : source) {
    if (c != '\n' || previous != '\r') source_ += c == '\r' ? '\n' : c;
    previous = c;
  }
  if (source_.ends_with('\n')) source_.pop_back();
  try {
    if (source.size() > kMaxBytes)
      throw TemplateError(fmt::format("a template of more than {} bytes", kMaxBytes), 0);
    body_ = Parser(source_, names_).parse();
  } catch (const TemplateError& error) {
    report(error);
  }
}

void Template::report(const TemplateError& error) const {
  const std::string_view before = std::string_view(source_).substr(0, error.offset);
  const size_t line = before.rfind('\n') + 1;
  // A message may quote a text of megabytes, a part of a character at its end included.
  std::string what;
  append_utf8(what, std::string_view(error.what()).substr(0, kMaxMessage), /*at_end=*/false);
  if (std::string_view(error.what()).size() > kMaxMessage) what += "...";
  fail("{}, line {}, column {}: {}", where_, std::ranges::count(before, '\n') + 1,
       count_code_points(before.substr(line)) + 1, what);
}

}  // namespace nanovllm::jinja
