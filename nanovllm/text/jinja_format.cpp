#include <algorithm>
#include <cmath>

#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_text.h"

// Python's two ways to format, as far as templates use them: "%05.1f" % x and "{:>8}".format(x).
namespace nanovllm::jinja {

namespace {

constexpr int64_t kMaxWidth = 10'000;

struct Spec {
  char align = '\0';  // < > ^ or '='; default: texts begin on the left, numbers end on the right
  char sign = '-';    // + - or a space
  std::string fill = " ";
  int64_t width = 0;
  int64_t precision = -1;
  char type = '\0';
};

bool is_one_of(char c, std::string_view set) { return set.find(c) != kNotFound; }

/// Reads a specification piece by piece.
struct Reader {
  std::string_view text;
  size_t at = 0;

  bool skip(char c) { return at < text.size() && text[at] == c && ++at > 0; }
  char skip_one_of(std::string_view set) {
    return at < text.size() && is_one_of(text[at], set) ? text[at++] : '\0';
  }
  int64_t number() {
    int64_t n = 0;
    while (const char c = skip_one_of("0123456789")) {
      n = n * 10 + (c - '0');
      if (n > kMaxWidth) raise("a format is wider than {}", kMaxWidth);
    }
    return n;
  }
  /// [width][.precision]type, which both ways end with.
  void finish(Spec& spec) {
    spec.width = number();
    if (skip('.')) spec.precision = number();
    if (at < text.size()) spec.type = text[at++];
  }
};

std::string digits(const Value& v, const Spec& spec) {
  const bool as_float = v.is_float() || is_one_of(spec.type, "eEfFgG");
  if (!as_float) {
    const auto bits = static_cast<unsigned __int128>(v.integer());
    const auto magnitude = v.integer() < 0 ? -bits : bits;
    if (spec.type == 'x') return fmt::format("{:x}", magnitude);
    if (spec.type == 'X') return fmt::format("{:X}", magnitude);
    return fmt::format("{}", magnitude);
  }
  const double d = std::fabs(v.number());
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  if (!std::isfinite(d)) return std::isnan(d) ? "nan" : "inf";
  switch (spec.type) {
    case 'e':
      return fmt::format("{:.{}e}", d, precision);
    case 'E':
      return fmt::format("{:.{}E}", d, precision);
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", d, precision);
    case 'g':
      return fmt::format("{:.{}g}", d, precision);
    case 'G':
      return fmt::format("{:.{}G}", d, precision);
    default:
      return float_repr(d);
  }
}

void add_value(Writer& out, const Value& v, const Spec& spec, char align) {
  std::string sign, body;
  if (is_one_of(spec.type, "dxXeEfFgG") || (spec.type == '\0' && v.is_number() && !v.is_bool())) {
    if (!v.defined().is_number() || (v.is_float() && is_one_of(spec.type, "dxX")))
      raise("format '{}' does not fit a value of type '{}'", spec.type, v.type_name());
    sign = (v.is_float() ? std::signbit(v.number()) : v.integer() < 0) ? "-"
           : spec.sign == '-'                                          ? ""
                                                                       : std::string(1, spec.sign);
    body = digits(v, spec);
    align = '>';
  } else if (spec.type == 's' || spec.type == 'r' || spec.type == '\0') {
    body = spec.type == 'r' ? repr(v, out.budget()) : to_string(v, out.budget());
    if (spec.precision >= 0) body.resize(byte_offset(body, static_cast<size_t>(spec.precision)));
  } else {
    raise("unsupported format character '{}'", spec.type);
  }
  if (spec.align != '\0') align = spec.align;
  const size_t size = sign.size() + count_code_points(body);
  const size_t missing = std::max(static_cast<size_t>(spec.width), size) - size;
  const size_t left = align == '>' ? missing : align == '^' ? missing / 2 : 0;
  out.fill(left, spec.fill);
  out.add(sign);
  if (align == '=') out.fill(missing, spec.fill);
  out.add(body);
  if (align == '<' || align == '^') out.fill(missing - left, spec.fill);
}

const Value& find_named(const Args& args, std::string_view name) {
  const auto found = std::ranges::find(args.named, name, &std::pair<std::string, Value>::first);
  if (found == args.named.end()) raise("nothing is given for {} in the format", quote(name));
  return found->second;
}

}  // namespace

std::string format_percent(std::string_view format, const Args& args, Budget& budget) {
  Writer out(budget);
  Reader reader{format};
  size_t next = 0;
  while (reader.at < format.size()) {
    const size_t percent = std::min(format.find('%', reader.at), format.size());
    out.add(format.substr(reader.at, percent - reader.at));
    reader.at = percent + 1;
    if (percent == format.size()) break;
    const Value* value = nullptr;
    if (reader.skip('(')) {
      const size_t end = std::min(format.find(')', reader.at), format.size());
      value = &find_named(args, format.substr(reader.at, end - reader.at));
      reader.at = end + 1;
    }
    Spec spec;
    while (const char flag = reader.skip_one_of("-0+ ")) {
      if (flag == '-') spec.align = '<';
      if (flag == '0' && spec.align == '\0') spec.align = '=';
      if (flag == '+' || flag == ' ') spec.sign = flag;
    }
    reader.finish(spec);
    if (spec.type == '\0') raise("incomplete format");
    if (spec.type == '%') {
      out.add("%");
      continue;
    }
    if (spec.type == 'i') spec.type = 'd';
    if (value == nullptr && next == args.positional.size())
      raise("not enough arguments for format string");
    Value v = value != nullptr ? *value : args.positional[next++];
    if (v.is_float() && spec.type == 'd' && std::fabs(v.number()) < 1e38)
      v = static_cast<Int>(v.number());
    if (spec.align == '=') {
      if (is_one_of(spec.type, "dxXeEfFgG")) spec.fill = "0";
      else spec.align = '>';
    }
    add_value(out, v, spec, '>');
  }
  if (args.named.empty() && next < args.positional.size())
    raise("not all arguments converted during string formatting");
  return out.take();
}

std::string format_braces(std::string_view format, const Args& args, Budget& budget) {
  Writer out(budget);
  size_t next = 0;
  for (size_t i = 0; i < format.size();) {
    const size_t brace = std::min(format.find_first_of("{}", i), format.size());
    out.add(format.substr(i, brace - i));
    i = brace + 1;
    if (brace == format.size()) break;
    if (i < format.size() && format[i] == format[brace]) {
      out.add(format.substr(i++, 1));
      continue;
    }
    const size_t end = format.find('}', i);
    if (format[brace] == '}' || end == kNotFound)
      raise("a brace without its partner in the format");
    const std::string_view field = format.substr(i, end - i);
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view name = field.substr(0, colon);
    i = end + 1;
    const std::optional<Int> index = name.empty() ? static_cast<Int>(next++) : parse_integer(name);
    if (index && (*index < 0 || *index >= static_cast<Int>(args.positional.size())))
      raise("replacement index {} out of range", *index);
    const Value& v = index ? args.positional[static_cast<size_t>(*index)] : find_named(args, name);

    Reader reader{field.substr(std::min(colon + 1, field.size()))};
    Spec spec;
    const size_t fill = reader.text.empty() ? 0 : byte_offset(reader.text, 1);
    if (fill < reader.text.size() && fill > 0 && is_one_of(reader.text[fill], "<>^=")) {
      spec.fill = reader.text.substr(0, fill);
      reader.at = fill;
    }
    spec.align = reader.skip_one_of("<>^=");
    if (const char sign = reader.skip_one_of("+- ")) spec.sign = sign;
    if (reader.skip('0') && spec.align == '\0') {
      spec.align = '=';
      spec.fill = "0";
    }
    reader.finish(spec);
    if (reader.at < reader.text.size() || spec.type == 'r') raise("bad format {}", quote(field));
    add_value(out, v, spec, '<');
  }
  return out.take();
}

}  // namespace nanovllm::jinja
