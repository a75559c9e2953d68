#include "nanovllm/text/grammar/schema/json_text.h"

#include <algorithm>
#include <cmath>

#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/regex/regex.h"

namespace nanovllm::grammar {

namespace {

/// White space repeats without an end in the answers of some models, which would take all tokens
/// that a request may have. So a gap is some white space, then perhaps a line with its indentation.
constexpr uint32_t kMaxGap = 16, kMaxIndentation = 64;

Bytes bytes_of(std::string_view text) {
  Bytes set;
  for (const char c : text) set.set(static_cast<uint8_t>(c));
  return set;
}

/// A code point in \u notation: one unit that is no surrogate, or a pair of surrogates.
Expr escaped_code_point(Expressions& e) {
  const Expr digit = e.bytes(bytes_of("0123456789abcdefABCDEF"));
  const Expr before_d = e.sequence({e.bytes(bytes_of("0123456789abcefABCEF")), digit});
  const Expr d = e.bytes(bytes_of("dD"));
  const Expr not_surrogate = e.any_of({before_d, e.sequence(d, e.byte_range('0', '7'))});
  const Expr high = e.sequence({d, e.bytes(bytes_of("89abAB")), digit, digit});
  const Expr low = e.sequence({d, e.bytes(bytes_of("cdefCDEF")), digit, digit});
  return e.sequence(e.text("u"), e.any_of({e.sequence({not_surrogate, digit, digit}),
                                           e.sequence({high, e.text("\\u"), low})}));
}

}  // namespace

JsonText::JsonText(Expressions& e, const JsonSchemaOptions& options, const std::string& where) {
  gap = Expr::kEmpty;
  comma = e.text(", ");
  colon = e.text(": ");
  if (!options.disable_any_whitespace) {
    gap = options.whitespace_pattern
              ? parse_regex(e, *options.whitespace_pattern, {}, where + ": whitespace_pattern")
              : e.sequence({e.repeat(e.bytes(bytes_of(" \t\n\r")), 0, kMaxGap),
                            e.optional(e.sequence(e.text("\n"), e.repeat(e.bytes(bytes_of(" \t")),
                                                                         0, kMaxIndentation)))});
    comma = e.sequence({gap, e.text(","), gap});
    colon = e.sequence({gap, e.text(":"), gap});
  }
  character = grammar::character(e, CodePoints::all(), Coding::kJsonString);
  CodePoints escaped(0, 0x1F);
  escaped.add('"', '"');
  escaped.add('\\', '\\');
  const Expr plain = grammar::character(e, escaped.complement(), Coding::kUtf8);
  const Expr escape = e.any_of({e.bytes(bytes_of("\"\\/bfnrt")), escaped_code_point(e)});
  free_character = e.any_of({plain, e.sequence(e.text("\\"), escape)});
}

Expr JsonText::quoted(Expressions& e, Expr body) const {
  return e.sequence({e.text("\""), body, e.text("\"")});
}

Expr JsonText::quoted(Expressions& e, std::string_view text) const {
  return quoted(e, string_text(e, text));
}

Expr string_text(Expressions& e, std::string_view text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
  });
  return is_plain ? e.text(text) : written(e, text, Coding::kJsonString);
}

bool is_integer(const Json& number) {
  if (number.is_number_integer()) return true;
  const double value = number.get<double>();
  return value == std::trunc(value) && std::abs(value) < 0x1p53;
}

std::string number_text(const Json& number) {
  const bool is_whole_real = number.is_number_float() && is_integer(number);
  return is_whole_real ? std::to_string(number.get<int64_t>()) : number.dump();
}

size_t num_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

}  // namespace nanovllm::grammar
