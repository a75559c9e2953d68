#include <fmt/format.h>

#include <set>

#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

namespace {

constexpr size_t kMaxPrinted = 1 << 20;

std::string printed_byte(size_t byte) {
  if (byte == '\n') return "\\n";
  if (byte == '\t') return "\\t";
  if (byte < ' ' || byte > '~') return fmt::format("\\x{:02x}", byte);
  return (byte == '"' || byte == '\\' || byte == ']' || byte == '-' ? "\\" : "") +
         std::string(1, static_cast<char>(byte));
}

std::string printed_set(const Bytes& set) {
  std::string text = "[";
  for (size_t i = 0; i < 256; ++i) {
    if (!set[i]) continue;
    const size_t first = i;
    while (i + 1 < 256 && set[i + 1]) ++i;
    text += printed_byte(first);
    if (i > first + 1) text += '-';
    if (i > first) text += printed_byte(i);
  }
  return text + "]";
}

}  // namespace

void Expressions::print(Expr e, std::string& text, std::vector<uint32_t>& rules) const {
  if (text.size() > kMaxPrinted) return;
  const Node& n = node(e);
  const auto part = [&](uint32_t id) {
    const auto parts = static_cast<Expr>(id);
    const bool simple = node(parts).kind == Kind::kBytes || node(parts).kind == Kind::kRule;
    if (!simple) text += "(";
    print(parts, text, rules);
    if (!simple) text += ")";
  };
  switch (n.kind) {
    case Kind::kNothing:
      text += "nothing";
      return;
    case Kind::kEmpty:
      text += "\"\"";
      return;
    case Kind::kBytes:
      text += sets_[n.a].count() == 1 ? "\"" + printed_byte(sets_[n.a]._Find_first()) + "\""
                                      : printed_set(sets_[n.a]);
      return;
    case Kind::kSequence:
      for (bool first = true; e != Expr::kEmpty; first = false) {
        const auto [head, rest] = split(e);
        const bool is_byte = node(head).kind == Kind::kBytes && sets_[node(head).a].count() == 1;
        if (is_byte && !first && text.ends_with('"')) {  // "a" "b" is "ab"
          text.pop_back();
          text += printed_byte(sets_[node(head).a]._Find_first()) + "\"";
        } else {
          if (!first) text += ' ';
          if (node(head).kind == Kind::kAnyOf) part(static_cast<uint32_t>(head));
          else print(head, text, rules);
        }
        e = rest;
      }
      return;
    case Kind::kAnyOf:
      for (const Expr& alternative : list(n)) {
        if (&alternative != list(n).data()) text += " | ";
        print(alternative, text, rules);
      }
      return;
    case Kind::kBoth:
      part(n.a);
      text += " & ";
      part(n.b);
      return;
    case Kind::kComplement:
      text += "!";
      part(n.a);
      return;
    case Kind::kRepeat:
      part(n.a);
      if (n.c == kUnlimited) text += n.b == 0 ? "*" : n.b == 1 ? "+" : fmt::format("{{{},}}", n.b);
      else text += n.b == 0 && n.c == 1 ? "?" : fmt::format("{{{},{}}}", n.b, n.c);
      return;
    case Kind::kMultiple:
      text += fmt::format("a multiple of {} / 10^{}", n.a, n.c % kPoint);
      return;
    case Kind::kRule:
      text += fmt::format("<{} {}>", rules_[n.a].name, n.a);
      rules.push_back(n.a);
  }
}

std::string Expressions::to_text(Expr start) const {
  std::string text = "start = ";
  std::vector<uint32_t> open;
  print(start, text, open);
  text += '\n';
  std::set<uint32_t> printed;
  for (size_t i = 0; i < open.size() && text.size() < kMaxPrinted; ++i) {
    const uint32_t rule = open[i];
    if (!printed.insert(rule).second) continue;
    text += fmt::format("<{} {}> = ", rules_[rule].name, rule);
    print(rules_[rule].body, text, open);
    text += '\n';
  }
  if (text.size() >= kMaxPrinted) text += "... (too long to be printed)\n";
  return text;
}

}  // namespace nanovllm::grammar
