#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "nanovllm/text/jinja/builtins.h"
#include "nanovllm/text/jinja/text.h"

// How values become text: str(), repr(), json.dumps() and what formats.
namespace nanovllm::jinja {

namespace {

/// open a, b, c close; `new_line` goes before each item and the end.
void write_items(Writer& out, std::string_view open, std::string_view close, const auto& items,
                 std::string_view separator, auto new_line, auto write_item) {
  out.add(open);
  for (bool first = true; const auto& item : items) {
    if (!std::exchange(first, false)) out.add(separator);
    new_line(1);
    write_item(item);
  }
  if (!items.empty()) new_line(0);
  out.add(close);
}

void write_repr(Writer& out, const Value& v) {
  out.budget.step();
  const auto no_line = [](size_t) {};
  const auto write_value = [&](const Value& item) { write_repr(out, item); };
  const Sequence* list = v.sequence();
  if (v.is_string()) {
    out.budget.build(2 * v.string().size());  // for the copy, which is up to four times as long
    out.add(v.is_markup() ? fmt::format("Markup({})", quote(v.string())) : quote(v.string()));
  } else if (list != nullptr && list->is_plain()) {
    const bool is_list = list->kind == Sequence::Kind::kList;
    const std::string_view close = is_list ? "]" : list->items.size() == 1 ? ",)" : ")";
    write_items(out, is_list ? "[" : "(", close, list->items, ", ", no_line, write_value);
  } else if (const Dict* dict = v.dict()) {
    write_items(out, "{", "}", dict->items, ", ", no_line, [&](const auto& item) {
      write_value(item.first);
      out.add(": ");
      write_value(item.second);
    });
  } else if (v.is_undefined() || v.is_none()) {
    out.add(v.is_none() ? "None" : "Undefined");
  } else if (v.is_bool()) {
    out.add(v.integer() != 0 ? "True" : "False");
  } else if (v.is_number()) {
    out.add(v.is_float() ? float_repr(v.number()) : fmt::format("{}", v.integer()));
  } else {
    raise("a {} cannot be printed{}", v.type_name(), list == nullptr ? "" : ": use |list");
  }
}

void write_json_string(Writer& out, std::string_view s, bool ensure_ascii) {
  out.add("\"");
  constexpr std::string_view kSpecial = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
  const auto code = [](char32_t c) { return static_cast<uint32_t>(c); };
  size_t plain = 0;  // where the bytes not yet written begin
  for (size_t i = 0; i < s.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(s, i);
    if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x80 || !ensure_ascii)) continue;
    out.add(s.substr(plain, begin - plain));
    plain = i;
    if (const size_t at = c < 0x80 ? kSpecial.find(static_cast<char>(c)) : kNotFound;
        at != kNotFound)
      out.add(std::string{'\\', kLetters[at]});
    else if (c < 0x10000) out.add(fmt::format("\\u{:04x}", code(c)));
    else  // a pair of surrogates
      out.add(fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + code(c >> 10), 0xDC00 + code(c & 0x3FF)));
  }
  out.add(s.substr(plain));
  out.add("\"");
}

std::string json_scalar(const Value& v) {
  if (v.is_none()) return "null";
  if (v.is_bool()) return v.integer() != 0 ? "true" : "false";
  if (v.is_integer()) return fmt::format("{}", v.integer());
  const double d = v.number();
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d > 0 ? "Infinity" : "-Infinity";
  return float_repr(d);
}

void write_json(Writer& out, const Value& v, const JsonStyle& style, size_t level) {
  out.budget.step();
  const auto new_line = [&](size_t deeper) {
    if (!style.pretty) return;
    out.add("\n");
    for (size_t i = 0; i < level + deeper && !style.indent.empty(); ++i) out.add(style.indent);
  };
  const auto write_value = [&](const Value& item) { write_json(out, item, style, level + 1); };
  const Sequence* list = v.sequence();
  if (v.is_string()) {
    write_json_string(out, v.string(), style.ensure_ascii);
  } else if (v.is_none() || v.is_number()) {
    out.add(json_scalar(v));
  } else if (list != nullptr && list->is_plain()) {
    write_items(out, "[", "]", list->items, style.item_separator, new_line, write_value);
  } else if (v.dict() != nullptr) {
    auto items = v.dict()->items;
    if (style.sort_keys)
      std::ranges::stable_sort(
          items, [&](const auto& a, const auto& b) { return less(a.first, b.first, out.budget); });
    write_items(out, "{", "}", items, style.item_separator, new_line, [&](const auto& item) {
      const Value& key = item.first;
      if (!key.is_string() && !key.is_number() && !key.is_none())
        raise("keys must be str, int, float, bool or None, not {}", key.type_name());
      write_json_string(out, key.is_string() ? key.string() : json_scalar(key), style.ensure_ascii);
      out.add(style.key_separator);
      write_value(item.second);
    });
  } else {
    raise("Object of type {} is not JSON serializable", v.type_name());
  }
}

}  // namespace

void write(Writer& out, const Value& v) {
  if (v.is_string()) out.add(v.string());
  else if (!v.is_undefined()) write_repr(out, v);
}

std::string to_string(const Value& v, Budget& budget) {
  Writer out(budget);
  write(out, v);
  return out.take();
}

std::string repr(const Value& v, Budget& budget) {
  Writer out(budget);
  write_repr(out, v);
  return out.take();
}

std::string to_json(const Value& v, const JsonStyle& style, Budget& budget) {
  Writer out(budget);
  write_json(out, v, style, 0);
  return out.take();
}

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  // The shortest digits that read back as d; plain notation from 1e-4 up to 1e16, as CPython's
  // repr.
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

/// No template uses widths and the like: they are errors.
void add_formatted(Writer& out, const Value& v, std::string_view type) {
  if (type == "s" && v.is_string()) return out.add(v.string());
  if (type != "d" || !v.is_integer())
    raise("the format {} is unknown or does not fit a value of type '{}'", quote(type),
          v.type_name());
  out.add(fmt::format("{}", v.integer()));
}

const Value& pick(const Args& args, Int i) {
  if (i < 0 || i >= static_cast<Int>(args.positional.size()))
    raise("not enough arguments for the format");
  return args.positional[static_cast<size_t>(i)];
}

const Value& pick(const Args& args, std::string_view name, Budget& budget) {
  const auto found = args.find(name, budget);
  if (found == args.named.end()) raise("nothing is given for {} in the format", quote(name));
  return found->second;
}

}  // namespace

/// %s, %r, %d and %i, and %(name)s.
std::string format_percent(std::string_view format, const Args& args, Budget& budget) {
  Writer out(budget);
  Int next = 0;  // argument
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
        is_named ? pick(args, format.substr(i + 1, end - i - 1), budget) : pick(args, next++);
    if (is_named) i = end + 1;
    std::string_view type = format.substr(std::min(i, format.size()), 1);
    if (type == "i") type = "d";
    if (type == "s") write(out, v);
    else if (type == "r") write_repr(out, v);
    else if (v.is_float() && std::fabs(v.number()) < 1e38)
      add_formatted(out, static_cast<Int>(v.number()), type);
    else add_formatted(out, v, type);
  }
  if (args.named.empty() && next < static_cast<Int>(args.positional.size()))
    raise("not all arguments converted during string formatting");
  return out.take();
}

/// {}, {0} and {name}, and {:d} and {:s}.
std::string format_braces(std::string_view format, const Args& args, Budget& budget) {
  Writer out(budget);
  Int next = 0;  // argument
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
    if (format[brace] == '}' || end == kNotFound)
      raise("a brace without its partner in the format");
    const std::string_view field = format.substr(i, end - i);
    const std::string_view name = field.substr(0, field.find(':'));
    i = end;
    const std::optional<Int> index = parse_integer(name);
    budget.step();
    const Value& v = name.empty() ? pick(args, next++)
                     : index      ? pick(args, *index)
                                  : pick(args, name, budget);
    if (name.size() + 1 >= field.size()) write(out, v);
    else add_formatted(out, v, field.substr(name.size() + 1));
  }
  return out.take();
}

}  // namespace nanovllm::jinja
