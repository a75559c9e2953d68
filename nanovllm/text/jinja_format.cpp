#include <algorithm>
#include <cmath>

#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_interpreter.h"
#include "nanovllm/text/jinja_text.h"

// Python's two ways to format: "%05.1f" % x and "{:>8}".format(x).
namespace nanovllm::jinja {

namespace {

constexpr int64_t kMaxWidth = 10'000;

/// [[fill]align][sign][#][0][width][grouping][.precision][type]
struct Spec {
  std::string fill = " ";
  char align = '\0';  // < > ^ =
  char sign = '-';    // + - or a space
  bool alternate = false;
  int64_t width = 0;
  char grouping = '\0';  // , or _
  int64_t precision = -1;
  char type = '\0';
};

int64_t take_number(std::string_view s, size_t& i) {
  int64_t n = 0;
  for (; i < s.size() && s[i] >= '0' && s[i] <= '9'; ++i)
    if ((n = n * 10 + (s[i] - '0')) > kMaxWidth) raise("a format's width is above {}", kMaxWidth);
  return n;
}

std::string group_digits(const std::string& digits, char separator) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (size_t i = 0; i < end; ++i) {
    if (i > 0 && (end - i) % 3 == 0) out += separator;
    out += digits[i];
  }
  return out + digits.substr(end);
}

/// A number without its sign, and the prefix that "#" asks for.
std::pair<std::string, std::string> integer_digits(Int value, char type, bool alternate) {
  using Unsigned = unsigned __int128;
  const Unsigned size = value < 0 ? -static_cast<Unsigned>(value) : static_cast<Unsigned>(value);
  const char* prefix = "";
  if (alternate)
    prefix = type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : type == 'b' ? "0b" : "";
  switch (type) {
    case 'x':
      return {prefix, fmt::format("{:x}", size)};
    case 'X':
      return {prefix, fmt::format("{:X}", size)};
    case 'o':
      return {prefix, fmt::format("{:o}", size)};
    case 'b':
      return {prefix, fmt::format("{:b}", size)};
    default:
      return {"", fmt::format("{}", size)};
  }
}

std::string float_digits(double value, const Spec& spec) {
  const double size = std::fabs(value);
  const bool upper = spec.type == 'E' || spec.type == 'F' || spec.type == 'G';
  if (!std::isfinite(value)) {
    const char* name = std::isnan(value) ? "nan" : "inf";
    return upper ? to_upper(name) : name;
  }
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  switch (spec.type) {
    case '%':
      return fmt::format("{:.{}f}%", size * 100, precision);
    case 'e':
      return fmt::format("{:.{}e}", size, precision);
    case 'E':
      return fmt::format("{:.{}E}", size, precision);
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", size, precision);
    case 'g':
      return fmt::format("{:.{}g}", size, precision);
    case 'G':
      return fmt::format("{:.{}G}", size, precision);
    default:
      break;
  }
  if (spec.precision < 0) return float_repr(size);
  std::string text = fmt::format("{:.{}g}", size, std::max(precision, 1));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

void add_padded(Writer& out, const Spec& spec, std::string_view prefix, std::string_view body,
                char default_align) {
  const auto size = static_cast<int64_t>(count_code_points(prefix) + count_code_points(body));
  const auto missing = static_cast<size_t>(std::max<int64_t>(spec.width - size, 0));
  const char align = spec.align == '\0' ? default_align : spec.align;
  const size_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  out.fill(left, spec.fill);
  out.add(prefix);
  if (align == '=') out.fill(missing, spec.fill);
  out.add(body);
  if (align == '<' || align == '^') out.fill(missing - left, spec.fill);
}

void add_number(Writer& out, const Value& v, const Spec& spec) {
  const bool as_float =
      v.is_float() ||
      (spec.type != '\0' && std::string_view("eEfFgG%").find(spec.type) != std::string_view::npos);
  std::string prefix, body;
  bool is_negative;
  if (as_float) {
    is_negative = std::signbit(v.number());
    body = float_digits(v.number(), spec);
  } else {
    is_negative = v.integer() < 0;
    std::tie(prefix, body) = integer_digits(v.integer(), spec.type, spec.alternate);
  }
  if (spec.grouping != '\0') body = group_digits(body, spec.grouping);
  if (is_negative) prefix.insert(0, "-");
  else if (spec.sign != '-') prefix.insert(0, 1, spec.sign);
  add_padded(out, spec, prefix, body, '>');
}

void add_text(Writer& out, std::string_view s, const Spec& spec, char default_align) {
  if (spec.precision >= 0) s = s.substr(0, byte_offset(s, static_cast<size_t>(spec.precision)));
  add_padded(out, spec, "", s, default_align);
}

/// One conversion of the % operator.
void add_percent(Writer& out, const Value& v, Spec spec) {
  Budget& budget = out.budget();
  switch (spec.type) {
    case 's':
      return add_text(out, to_string(v, budget), spec, '>');
    case 'r':
    case 'a':
      return add_text(out, repr(v, budget), spec, '>');
    case 'c':
      if (v.is_string() && count_code_points(v.string()) == 1)
        return add_text(out, v.string(), spec, '>');
      if (v.is_integer() && v.integer() >= 0 && v.integer() < 0xD800) {
        std::string c;
        append_code_point(c, static_cast<int32_t>(v.integer()));
        return add_text(out, c, spec, '>');
      }
      raise("%c requires int or char");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': {
      const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
      if (!v.defined().is_number() || (v.is_float() && !decimal))
        raise("%{} format: a number is required, not {}", spec.type, v.type_name());
      if (v.is_float() && !(std::fabs(v.number()) < 1e38))
        raise("cannot convert {} to an integer", float_repr(v.number()));
      if (decimal) spec.type = 'd';
      return add_number(out, v.is_float() ? Value(static_cast<Int>(v.number())) : v, spec);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (!v.defined().is_number()) raise("must be real number, not {}", v.type_name());
      return add_number(out, v, spec);
    default:
      raise("unsupported format character '{}'", spec.type);
  }
}

Spec parse_spec(std::string_view s) {
  Spec spec;
  size_t i = 0;
  const auto is_align = [&](size_t at) {
    return at < s.size() && std::string_view("<>^=").find(s[at]) != std::string_view::npos;
  };
  size_t after = 0;
  if (!s.empty()) next_code_point(s, after);
  if (after > 0 && is_align(after)) {
    spec.fill = s.substr(0, after);
    spec.align = s[after];
    i = after + 1;
  } else if (is_align(0)) {
    spec.align = s[i++];
  }
  const auto skip = [&](char c) { return i < s.size() && s[i] == c && ++i > 0; };
  if (i < s.size() && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) spec.sign = s[i++];
  spec.alternate = skip('#');
  if (skip('0') && spec.align == '\0') {
    spec.align = '=';
    spec.fill = "0";
  }
  spec.width = take_number(s, i);
  if (i < s.size() && (s[i] == ',' || s[i] == '_')) spec.grouping = s[i++];
  if (skip('.')) spec.precision = take_number(s, i);
  if (i < s.size()) spec.type = s[i++];
  if (i < s.size()) raise("invalid format specifier '{}'", s);
  return spec;
}

void add_field(Writer& out, const Value& v, std::string_view written) {
  if (written.empty()) return write(out, v);
  const Spec spec = parse_spec(written);
  if (v.is_number() && spec.type != 's') {
    if (spec.type != '\0' &&
        std::string_view("dxXobeEfFgG%n").find(spec.type) == std::string_view::npos)
      raise("unknown format code '{}' for an object of type '{}'", spec.type, v.type_name());
    if (v.is_float() && spec.type != '\0' &&
        std::string_view("dxXob").find(spec.type) != std::string_view::npos)
      raise("unknown format code '{}' for an object of type 'float'", spec.type);
    if (!v.is_bool() || spec.type != '\0') return add_number(out, v, spec);
  }
  if (!v.is_string() && !v.is_bool())
    raise("unsupported format string passed to {}.__format__", v.type_name());
  if (spec.type != '\0' && spec.type != 's')
    raise("unknown format code '{}' for an object of type 'str'", spec.type);
  add_text(out, to_string(v, out.budget()), spec, '<');
}

}  // namespace

std::string format_percent(std::string_view format, const Args& args, Budget& budget) {
  Writer out(budget);
  size_t next = 0;
  const auto take = [&]() -> const Value& {
    if (next >= args.positional.size()) raise("not enough arguments for format string");
    return args.positional[next++];
  };
  bool by_name = false;
  for (size_t i = 0; i < format.size();) {
    const size_t percent = std::min(format.find('%', i), format.size());
    out.add(format.substr(i, percent - i));
    if (percent == format.size()) break;
    i = percent + 1;
    const auto skip = [&](char c) { return i < format.size() && format[i] == c && ++i > 0; };
    const Value* value = nullptr;
    if (skip('(')) {
      const size_t end = format.find(')', i);
      if (end == std::string_view::npos) raise("incomplete format key");
      const auto name = format.substr(i, end - i);
      const auto found = std::ranges::find(args.named, name, &std::pair<std::string, Value>::first);
      if (found == args.named.end()) raise("format key {} is missing", quote(name));
      value = &found->second;
      by_name = true;
      i = end + 1;
    }
    Spec spec;
    bool left = false, zero = false;
    for (bool flag = true; flag;) {
      flag = true;
      if (skip('-')) left = true;
      else if (skip('0')) zero = true;
      else if (skip('+')) spec.sign = '+';
      else if (skip(' ')) spec.sign = spec.sign == '+' ? '+' : ' ';
      else if (skip('#')) spec.alternate = true;
      else flag = false;
    }
    const auto number = [&]() -> int64_t {
      if (!skip('*')) return take_number(format, i);
      const Value& v = take();
      if (!v.is_integer() || v.integer() > kMaxWidth || v.integer() < -kMaxWidth)
        raise("* wants int");
      return static_cast<int64_t>(v.integer());
    };
    spec.width = number();
    if (spec.width < 0) {
      left = true;
      spec.width = -spec.width;
    }
    if (skip('.')) spec.precision = std::max<int64_t>(number(), 0);
    if (i >= format.size()) raise("incomplete format");
    spec.type = format[i++];
    if (spec.type == '%') {
      out.add("%");
      continue;
    }
    if (left) {
      spec.align = '<';
    } else if (zero && std::string_view("diuxXoeEfFgG").find(spec.type) != std::string_view::npos) {
      spec.align = '=';
      spec.fill = "0";
    }
    add_percent(out, value != nullptr ? *value : take(), spec);
  }
  if (!by_name && args.named.empty() && next < args.positional.size())
    raise("not all arguments converted during string formatting");
  return out.take();
}

std::string format_braces(std::string_view format, const Args& args, Interpreter& interpreter,
                          Budget& budget) {
  Writer out(budget);
  size_t next = 0;
  for (size_t i = 0; i < format.size();) {
    const size_t brace = std::min(format.find_first_of("{}", i), format.size());
    out.add(format.substr(i, brace - i));
    if (brace == format.size()) break;
    i = brace + 1;
    if (i < format.size() && format[i] == format[brace]) {
      out.add(format.substr(i++, 1));
      continue;
    }
    if (format[brace] == '}') raise("single '}}' encountered in format string");
    const size_t end = format.find('}', i);
    if (end == std::string_view::npos) raise("expected '}}' before end of string");
    std::string_view field = format.substr(i, end - i), spec;
    i = end + 1;
    if (field.find('{') != std::string_view::npos)
      raise("fields within format specifiers are not supported");
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const size_t mark = field.find('!'); mark != std::string_view::npos) {
      if (field.size() != mark + 2) raise("bad conversion in format string");
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    const size_t name_end = std::min(field.find_first_of(".["), field.size());
    const std::string_view name = field.substr(0, name_end);
    Value v;
    if (const std::optional<Int> index =
            name.empty() ? static_cast<Int>(next) : parse_integer(name)) {
      if (name.empty()) ++next;
      if (*index < 0 || *index >= static_cast<Int>(args.positional.size()))
        raise("replacement index {} out of range", *index);
      v = args.positional[static_cast<size_t>(*index)];
    } else {
      const auto found = std::ranges::find(args.named, name, &std::pair<std::string, Value>::first);
      if (found == args.named.end()) raise("format(): no argument {}", quote(name));
      v = found->second;
    }
    for (std::string_view path = field.substr(name_end); !path.empty();) {
      const bool is_attribute = path[0] == '.';
      path.remove_prefix(1);
      const size_t stop =
          std::min(is_attribute ? path.find_first_of(".[") : path.find(']'), path.size());
      const std::string_view key = path.substr(0, stop);
      const std::optional<Int> index = is_attribute ? std::nullopt : parse_integer(key);
      v = is_attribute ? interpreter.attribute(v, key)
                       : interpreter.item(v, index ? Value(*index) : Value(key));
      path.remove_prefix(std::min(stop + (is_attribute ? 0 : 1), path.size()));
    }
    if (conversion == 'r' || conversion == 'a') v = repr(v, budget);
    else if (conversion == 's') v = to_string(v, budget);
    else if (conversion != '\0') raise("unknown conversion specifier '{}'", conversion);
    add_field(out, v, spec);
  }
  return out.take();
}

}  // namespace nanovllm::jinja
