#include "nanovllm/text/jinja_lexer.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "nanovllm/text/jinja_text.h"

namespace nanovllm::jinja {

namespace {

using Type = Token::Type;

// Longest first.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (pos_ < source_.size()) {
      const size_t tag = next_tag();
      if (tag == kNotFound) {
        add(Type::kData, pos_, source_.substr(pos_));
        break;
      }
      const char kind = source_[tag + 1];
      const char sign = at(tag + 2) == '-' || at(tag + 2) == '+' ? at(tag + 2) : '\0';
      add_data(pos_, tag, sign, /*block=*/kind != '{');
      pos_ = tag + (sign == '\0' ? 2 : 3);
      if (kind == '#') {
        skip_comment(tag);
      } else if (kind == '{') {
        add(Type::kVariableBegin, tag, "{{");
        read_tag("}}", Type::kVariableEnd);
      } else if (!read_raw(tag)) {
        add(Type::kBlockBegin, tag, "{%");
        read_tag("%}", Type::kBlockEnd);
      }
    }
    add(Type::kEnd, source_.size(), "");
    return std::move(tokens_);
  }

 private:
  char at(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  bool starts_with(std::string_view s) const { return source_.substr(pos_).starts_with(s); }

  void add(Type type, size_t offset, std::string_view text, Value value = {}) {
    tokens_.push_back({type, static_cast<uint32_t>(offset), std::string(text), std::move(value)});
  }

  size_t next_tag() const {
    for (size_t i = source_.find('{', pos_); i != kNotFound; i = source_.find('{', i + 1))
      if (const char c = at(i + 1); c == '%' || c == '{' || c == '#') return i;
    return kNotFound;
  }

  void skip_space() {
    while (pos_ < source_.size()) {
      size_t next = pos_;
      if (!is_space(next_code_point(source_, next))) return;
      pos_ = next;
    }
  }

  /// The text before a tag: without its trailing whitespace for "-", without the indentation of a
  /// tag that begins its line unless "+" keeps it (lstrip_blocks; not before an expression).
  void add_data(size_t begin, size_t end, char sign, bool block) {
    std::string_view text = source_.substr(begin, end - begin);
    if (sign == '-') {
      text = strip(text, std::nullopt, false, true);
    } else if (sign != '+' && block) {
      const size_t line = text.rfind('\n') + 1;
      if ((line > 0 || begin == 0 || source_[begin - 1] == '\n') &&
          strip(text.substr(line), std::nullopt, true, false).empty())
        text = text.substr(0, line);
    }
    if (!text.empty()) add(Type::kData, begin, text);
  }

  /// Behind a tag's end that begins at pos_: "-" takes the whitespace with it, trim_blocks one line
  /// end.
  void skip_end(std::string_view end, bool trims_line) {
    const char sign = at(pos_);
    pos_ += end.size() + (sign == '-' || sign == '+' ? 1 : 0);
    if (sign == '-') skip_space();
    else if (sign != '+' && trims_line && at(pos_) == '\n') ++pos_;
  }

  bool at_end(std::string_view end) const {
    const bool signed_end = (at(pos_) == '-' || (at(pos_) == '+' && end != "}}")) &&
                            source_.substr(pos_ + 1).starts_with(end);
    return signed_end || starts_with(end);
  }

  void skip_comment(size_t tag) {
    const size_t end = source_.find("#}", pos_);
    if (end == kNotFound) throw TemplateError("a comment without its end '#}'", tag);
    const bool is_signed = end > pos_ && (at(end - 1) == '-' || at(end - 1) == '+');
    pos_ = end - (is_signed ? 1 : 0);
    skip_end("#}", true);
  }

  /// {% raw %} ... {% endraw %}, pos_ being behind "{%" and its sign. False where the tag is
  /// another one.
  bool read_raw(size_t tag) {
    const size_t begin = pos_;
    skip_space();
    const bool is_raw = starts_with("raw");
    pos_ += 3;
    if (is_raw) skip_space();
    if (!is_raw || !(starts_with("%}") || starts_with("-%}"))) {
      pos_ = begin;
      return false;
    }
    skip_end("%}", false);
    const size_t text = pos_;
    for (size_t end = source_.find("{%", pos_); end != kNotFound;
         end = source_.find("{%", end + 1)) {
      const char sign = at(end + 2) == '-' || at(end + 2) == '+' ? at(end + 2) : '\0';
      pos_ = end + (sign == '\0' ? 2 : 3);
      skip_space();
      if (!starts_with("endraw")) continue;
      pos_ += 6;
      skip_space();
      if (!at_end("%}")) continue;
      add_data(text, end, sign, true);
      skip_end("%}", true);
      return true;
    }
    throw TemplateError("a raw block without its {% endraw %}", tag);
  }

  void read_tag(std::string_view end, Type end_type) {
    std::string open;  // the closing brackets that are due
    for (;;) {
      if (open.empty() && at_end(end)) {
        add(end_type, pos_, end);
        return skip_end(end, end_type == Type::kBlockEnd);
      }
      if (pos_ >= source_.size()) {
        add(Type::kEnd, pos_, "");  // the parser knows what it expected
        return;
      }
      size_t next = pos_;
      const char32_t c = next_code_point(source_, next);
      if (is_space(c)) pos_ = next;
      else if (c < 0x80 && is_decimal(static_cast<char>(c))) read_number();
      else if (c == '\'' || c == '"') read_string(static_cast<char>(c));
      else if (c == '_' || is_letter(c)) read_name();
      else read_operator(open);
    }
  }

  void read_name() {
    const size_t begin = pos_;
    for (size_t next = pos_; next < source_.size(); pos_ = next) {
      const char32_t c = next_code_point(source_, next);
      if (c != '_' && !is_letter(c) && !is_digit(c)) break;
    }
    add(Type::kName, begin, source_.substr(begin, pos_ - begin));
  }

  void read_operator(std::string& open) {
    for (const std::string_view op : kOperators) {
      if (!starts_with(op)) continue;
      if (op == "(") open += ')';
      if (op == "[") open += ']';
      if (op == "{") open += '}';
      if (op == ")" || op == "]" || op == "}") {
        if (open.empty()) throw TemplateError(fmt::format("unexpected '{}'", op), pos_);
        if (open.back() != op[0])
          throw TemplateError(fmt::format("unexpected '{}', expected '{}'", op, open.back()), pos_);
        open.pop_back();
      }
      add(Type::kOperator, pos_, op);
      pos_ += op.size();
      return;
    }
    size_t next = pos_;
    next_code_point(source_, next);
    const std::string_view c = source_.substr(pos_, next - pos_);
    throw TemplateError(fmt::format("unexpected character {}", quote(c)), pos_);
  }

  /// Decimal digits alone: nobody writes the other notations of Python into a template.
  void read_number() {
    const size_t begin = pos_;
    const auto skip_digits = [&] {
      while (is_decimal(at(pos_))) ++pos_;
    };
    skip_digits();
    bool is_float = false;
    if (begin == 0 || source_[begin - 1] != '.') {  // a.0.5 are two subscripts
      if (at(pos_) == '.' && is_decimal(at(pos_ + 1))) {
        is_float = true;
        ++pos_;
        skip_digits();
      }
      const size_t sign = at(pos_ + 1) == '+' || at(pos_ + 1) == '-' ? 1 : 0;
      if ((at(pos_) == 'e' || at(pos_) == 'E') && is_decimal(at(pos_ + 1 + sign))) {
        is_float = true;
        pos_ += 1 + sign;
        skip_digits();
      }
    }
    const std::string digits(source_.substr(begin, pos_ - begin));
    Value value = std::strtod(digits.c_str(), nullptr);
    if (!is_float) {
      const std::optional<Int> integer = parse_integer(digits);
      if (!integer || *integer > Int{UINT64_MAX})
        throw TemplateError("an integer above 64 bits", begin);
      value = *integer;
    }
    add(Type::kNumber, begin, digits, std::move(value));
  }

  void read_string(char mark) {
    const size_t begin = pos_++;
    std::string text;
    while (pos_ < source_.size() && source_[pos_] != mark) {
      if (source_[pos_] == '\\' && pos_ + 1 < source_.size()) read_escape(text);
      else text += source_[pos_++];
    }
    if (pos_ >= source_.size()) throw TemplateError("a text without its closing quote", begin);
    ++pos_;
    add(Type::kString, begin, text);
  }

  /// An escape of Python's string literals; an unknown one stands for itself.
  void read_escape(std::string& out) {
    constexpr std::string_view kLetters = "\n\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const char c = at(pos_ + 1);
    pos_ += 2;
    if (const size_t known = kLetters.find(c); known != kNotFound) {
      if (known > 0) out += kMeanings[known - 1];  // a line end vanishes
      return;
    }
    const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (count == 0) {
      out += '\\';
      --pos_;
      return;
    }
    uint32_t code = 0;
    const std::string_view digits = source_.substr(pos_, count);
    const auto [last, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc() || last != digits.data() + count || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000))
      throw TemplateError("a bad character escape", pos_ - 2);
    out += encode(code);
    pos_ += count;
  }

  std::string_view source_;
  size_t pos_ = 0;
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalize_source(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace nanovllm::jinja
