#include <algorithm>
#include <cmath>

#include "nanovllm/text/jinja_builtins.h"
#include "nanovllm/text/jinja_text.h"

// Python's two ways to format: "%05.1f" % x and "{:>8}".format(x). {fmt} has Python's language of
// specifications, so what goes through it here is what means the same in both.
namespace nanovllm::jinja {

namespace {

constexpr size_t kMaxWidth = 4;  // digits

/// `v` as format(v, spec) has it.
void add_formatted(Writer& out, const Value& v, const std::string& spec) {
  if (spec.empty()) return write(out, v);
  for (size_t i = 0, digits = 0; i < spec.size(); ++i) {
    digits = spec[i] >= '0' && spec[i] <= '9' ? digits + 1 : 0;
    if (digits > kMaxWidth) raise("a format is wider than {} digits", kMaxWidth);
  }
  const std::string form = fmt::format("{{:{}}}", spec);
  const char type = spec.back();
  const bool is_ascii =
      v.is_string() && std::ranges::all_of(v.string(), [](char c) { return (c & 0x80) == 0; });
  try {
    // Where {fmt} differs: the default form of floats, and wide characters take two columns.
    if (is_ascii && type != 'c') return out.add(fmt::format(fmt::runtime(form), v.string()));
    if (v.is_number() && std::string_view("eEfFgG").find(type) != kNotFound)
      return out.add(fmt::format(fmt::runtime(form), v.number()));
    if (v.is_integer() &&
        (std::string_view("dxX").find(type) != kNotFound || std::isalpha(type) == 0))
      return out.add(fmt::format(fmt::runtime(form), v.integer()));
  } catch (const fmt::format_error&) {
    // Told below.
  }
  raise("the format {} is unknown or does not fit a value of type '{}'", quote(spec),
        v.defined().type_name());
}

const Value& find_named(const Args& args, std::string_view name) {
  const auto found = std::ranges::find(args.named, name, &std::pair<std::string, Value>::first);
  if (found == args.named.end()) raise("nothing is given for {} in the format", quote(name));
  return found->second;
}

}  // namespace

std::string format_percent(std::string_view format, const Args& args, Budget& budget) {
  Writer out(budget);
  size_t next = 0;
  for (size_t i = 0; i < format.size();) {
    const size_t percent = std::min(format.find('%', i), format.size());
    out.add(format.substr(i, percent - i));
    if (percent == format.size()) break;
    i = percent + 1;
    const Value* named = nullptr;
    if (format.substr(i).starts_with('(')) {
      const size_t end = std::min(format.find(')', i), format.size() - 1);
      named = &find_named(args, format.substr(i + 1, end - i - 1));
      i = end + 1;
    }
    const size_t end = format.find_first_not_of("-+ 0123456789.", i);
    if (end == kNotFound) raise("incomplete format");
    std::string spec(format.substr(i, end - i));
    char type = format[end];
    i = end + 1;
    if (type == '%') {
      out.add("%");
      continue;
    }
    if (named == nullptr && next == args.positional.size())
      raise("not enough arguments for format string");
    Value v = named != nullptr ? *named : args.positional[next++];
    if (type == 's' || type == 'r') v = type == 's' ? to_string(v, budget) : repr(v, budget);
    if (type == 'i') type = 'd';
    if (v.is_float() && type == 'd' && std::fabs(v.number()) < 1e38)
      v = static_cast<Int>(v.number());
    if (v.is_string() != (type == 's' || type == 'r'))
      raise("%{} does not fit a value of type '{}'", type, v.type_name());
    if (v.is_string() && spec.empty()) {
      out.add(v.string());
      continue;
    }
    // Python's default is to the right, as {fmt}'s is for numbers; "-" is to the left.
    const bool left = spec.starts_with('-');
    if (left) spec.erase(0, 1);
    spec.insert(0, left ? "<" : v.is_string() ? ">" : "");
    add_formatted(out, v, spec + (v.is_string() ? 's' : type));
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
    if (brace == format.size()) break;
    i = brace + 1;
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
    add_formatted(out, v, std::string(field.substr(std::min(colon + 1, field.size()))));
  }
  return out.take();
}

}  // namespace nanovllm::jinja
