#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/text.h"

// How values become text: str(), repr(), json.dumps() and the two kinds of format strings.
namespace nanovllm::jinja {

namespace {

/// None, a boolean or a number.
std::string print_scalar(const Value& v, bool json) {
  if (v.is_none()) return json ? "null" : "None";
  if (v.is_bool() && json) return truthy(v) ? "true" : "false";
  if (v.is_bool()) return truthy(v) ? "True" : "False";
  if (v.is_integer()) return fmt::format("{}", v.integer());
  if (json && std::isnan(v.number())) return "NaN";
  if (json && std::isinf(v.number())) return v.number() > 0 ? "Infinity" : "-Infinity";
  return float_repr(v.number());
}

class Printer {
 public:
  Printer(Writer& out, const PrintStyle& style) : out_(out), style_(style) {}

  void print(const Value& v) {
    out_.budget.step();
    const Sequence* list = v.sequence();
    if (v.is_string()) {
      print_text(v);
    } else if (v.is_none() || v.is_number()) {
      out_.add(print_scalar(v, style_.json));
    } else if (list != nullptr && list->is_plain()) {
      const bool is_tuple = list->kind == Sequence::Kind::kTuple && !style_.json;
      const std::string_view end = !is_tuple ? "]" : list->items.size() == 1 ? ",)" : ")";
      print_items(is_tuple ? "(" : "[", end, list->items, [&](const Value& item) { print(item); });
    } else if (const Dict* dict = v.dict()) {
      auto sorted = style_.sort_keys ? dict->items : std::vector<std::pair<Value, Value>>();
      std::ranges::stable_sort(sorted, [&](const auto& a, const auto& b) {
        return less(a.first, b.first, out_.budget);
      });
      print_items("{", "}", style_.sort_keys ? sorted : dict->items, [&](const auto& item) {
        print_key(item.first);
        out_.add(style_.key_separator);
        print(item.second);
      });
    } else if (v.is_undefined() && !style_.json) {
      out_.add("Undefined");
    } else {
      raise("a value of type '{}' cannot be printed{}", v.type_name(),
            list == nullptr ? "" : ": use |list");
    }
  }

 private:
  void print_text(const Value& v) {
    const std::string& s = v.string();
    // Charge for the copy, which is up to six times as long. The writer charges for its output.
    out_.budget.build(2 * s.size());
    if (style_.json) {
      std::string quoted;
      append_json_string(quoted, s, style_.ensure_ascii);
      out_.add(quoted);
    } else out_.add(v.is_markup() ? fmt::format("Markup({})", quote(s)) : quote(s));
  }

  /// JSON's keys are texts.
  void print_key(const Value& key) {
    if (!style_.json || key.is_string()) return print(key);
    if (!key.is_number() && !key.is_none())
      raise("keys must be str, int, float, bool or None, not {}", key.type_name());
    out_.add(fmt::format("\"{}\"", print_scalar(key, /*json=*/true)));
  }

  void print_items(std::string_view begin, std::string_view end, const auto& items,
                   auto print_item) {
    out_.add(begin);
    ++level_;
    for (bool first = true; const auto& item : items) {
      if (!std::exchange(first, false)) out_.add(style_.item_separator);
      new_line();
      print_item(item);
    }
    --level_;
    if (!items.empty()) new_line();
    out_.add(end);
  }

  void new_line() {
    if (!style_.pretty) return;
    out_.add("\n");
    for (int i = 0; i < level_; ++i) out_.add(style_.indent);
  }

  Writer& out_;
  const PrintStyle& style_;
  int level_ = 0;  // the number of lists and dictionaries around the value
};

}  // namespace

std::string print(const Value& v, const PrintStyle& style, Budget& budget) {
  Writer out(budget);
  Printer(out, style).print(v);
  return out.take();
}

std::string repr(const Value& v, Budget& budget) { return print(v, {}, budget); }

void write(Writer& out, const Value& v) {
  if (v.is_string()) out.add(v.string());
  else if (!v.is_undefined()) Printer(out, {}).print(v);
}

std::string to_string(const Value& v, Budget& budget) {
  Writer out(budget);
  write(out, v);
  return out.take();
}

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  // The shortest digits that read back as d. CPython's repr() uses plain notation from 1e-4 up to
  // 1e16.
  char buffer[64];
  const double size = std::fabs(d);
  const bool plain = d == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

namespace {

/// Fills a format string with arguments.
class Formatter {
 public:
  Formatter(const Args& args, Budget& budget) : out(budget), args_(args) {}

  const Value& next() { return at(static_cast<Int>(num_taken_++)); }
  const Value& at(Int i) const {
    if (i < 0 || i >= static_cast<Int>(args_.positional.size()))
      raise("not enough arguments for the format");
    return args_.positional[static_cast<size_t>(i)];
  }
  const Value& named(std::string_view name) {
    const Value* found = args_.named.find(make_text(name, out.budget), out.budget);
    if (found == nullptr) raise("the format has no argument for {}", quote(name));
    return *found;
  }
  bool has_more() const { return num_taken_ < args_.positional.size(); }

  /// Adds a value of `type` "s", a text, or "d", an integer. No template uses widths and the like.
  void add(const Value& v, std::string_view type) {
    if (!(type == "s" && v.is_string()) && !(type == "d" && v.is_integer()))
      raise("the format {} is unknown or does not fit a value of type '{}'", quote(type),
            v.type_name());
    out.add(v.is_string() ? v.string() : fmt::format("{}", v.integer()));
  }

  Writer out;

 private:
  const Args& args_;
  size_t num_taken_ = 0;
};

}  // namespace

/// Supports %s, %r, %d and %i, and %(name)s.
std::string format_percent(std::string_view format, const Args& args, Budget& budget) {
  Formatter formatter(args, budget);
  Writer& out = formatter.out;
  for (size_t i = 0; i < format.size(); ++i) {
    const size_t percent = std::min(format.find('%', i), format.size());
    out.add(format.substr(i, percent - i));
    i = percent + 1;
    if (percent == format.size()) break;
    if (format.substr(i).starts_with('%')) {
      out.add("%");
      continue;
    }
    const bool is_named = format.substr(i).starts_with('(');
    const size_t end = is_named ? std::min(format.find(')', i), format.size() - 1) : i;
    budget.step();
    const Value& v =
        is_named ? formatter.named(format.substr(i + 1, end - i - 1)) : formatter.next();
    if (is_named) i = end + 1;
    std::string_view type = format.substr(std::min(i, format.size()), 1);
    if (type == "i") type = "d";
    if (type == "s") write(out, v);
    else if (type == "r") out.add(repr(v, budget));
    else if (v.is_float() && std::fabs(v.number()) < 1e38)
      formatter.add(static_cast<Int>(v.number()), type);
    else formatter.add(v, type);
  }
  if (args.named.items.empty() && formatter.has_more())
    raise("not all arguments converted during string formatting");
  return out.take();
}

std::string format_percent(std::string_view format, const Value& arguments, Budget& budget) {
  Args args;
  if (arguments.dict() != nullptr) args.named = *arguments.dict();
  if (is_kind(arguments, Sequence::Kind::kTuple)) args.positional = arguments.sequence()->items;
  else args.positional.push_back(arguments);
  args.charge(budget);
  budget.read(format.size());
  return format_percent(format, args, budget);
}

/// Supports {}, {0} and {name}, and {:d} and {:s}.
std::string format_braces(std::string_view format, const Args& args, Budget& budget) {
  Formatter formatter(args, budget);
  Writer& out = formatter.out;
  for (size_t i = 0; i < format.size(); ++i) {
    const size_t brace = std::min(format.find_first_of("{}", i), format.size());
    out.add(format.substr(i, brace - i));
    i = brace + 1;
    if (brace == format.size()) break;
    if (i < format.size() && format[i] == format[brace]) {
      out.add(format.substr(i, 1));
      continue;
    }
    const size_t end = format.find('}', i);
    if (format[brace] == '}' || end == kNotFound) raise("an unmatched brace in the format");
    const std::string_view field = format.substr(i, end - i);
    const std::string_view name = field.substr(0, field.find(':'));
    i = end;
    const std::optional<Int> index = parse_integer(name);
    budget.step();
    const Value& v = name.empty() ? formatter.next()
                     : index      ? formatter.at(*index)
                                  : formatter.named(name);
    if (name.size() + 1 >= field.size()) write(out, v);
    else formatter.add(v, field.substr(name.size() + 1));
  }
  return out.take();
}

}  // namespace nanovllm::jinja
