#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "nanovllm/text/jinja/tokens.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm::jinja {

namespace {

using Type = Token::Type;

// The longest operators come first, so that the first match is the longest one.
constexpr std::array<std::string_view, 26> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
    "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_decimal(char c) { return c >= '0' && c <= '9'; }
bool is_sign(char c) { return c == '-' || c == '+'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    for (size_t tag = find_tag(); tag != kNotFound; tag = find_tag()) {
      const char kind = source_[tag + 1];
      const size_t text = pos_;
      pos_ = tag + 2;
      add_data(text, tag, take_sign(), /*is_block=*/kind != '{');
      if (kind == '#') skip_comment(tag);
      else if (kind == '{') read_tag("{{", "}}", tag);
      else if (!read_raw(tag)) read_tag("{%", "%}", tag);
    }
    add_data(pos_, source_.size(), '\0', false);
    tokens_.push_back({Type::kEnd, source_.size(), ""});
    return std::move(tokens_);
  }

 private:
  char at(size_t i) const { return i < source_.size() ? source_[i] : '\0'; }
  bool starts_with(std::string_view s) const { return source_.substr(pos_).starts_with(s); }
  char take_sign() { return is_sign(at(pos_)) ? at(pos_++) : '\0'; }

  /// Adds the token from `begin` to the lexer's position.
  void add(Type type, size_t begin, Value value = {}) {
    tokens_.push_back(
        {type, begin, std::string(source_.substr(begin, pos_ - begin)), std::move(value)});
  }

  size_t find_tag() const {
    size_t i = source_.find('{', pos_);
    while (i != kNotFound && at(i + 1) != '%' && at(i + 1) != '{' && at(i + 1) != '#')
      i = source_.find('{', i + 1);
    return i;
  }

  void skip_space() {
    const std::string_view rest = source_.substr(pos_);
    pos_ += rest.size() - strip(rest, {}, true, false).size();
  }

  /// Adds the text before a tag. "-" removes its trailing whitespace. Unless "+" keeps it, the
  /// indentation of a tag that begins its line is removed (lstrip_blocks), but not that of an
  /// expression.
  void add_data(size_t begin, size_t end, char sign, bool is_block) {
    std::string_view text = source_.substr(begin, end - begin);
    const size_t line = text.rfind('\n') + 1;
    const bool begins_line = line > 0 || begin == 0 || source_[begin - 1] == '\n';
    if (sign == '-') text = strip(text, {}, false, true);
    else if (sign != '+' && is_block && begins_line && strip(text.substr(line)).empty())
      text = text.substr(0, line);
    if (!text.empty()) tokens_.push_back({Type::kData, begin, std::string(text)});
  }

  /// Skips the end of a tag, which begins at pos_, and the part of the text behind it that it
  /// removes: all whitespace if it begins with "-", or a newline (trim_blocks) unless it begins
  /// with
  /// "+".
  void skip_end(bool trims_line) {
    const char sign = take_sign();
    pos_ += 2;
    if (sign == '-') skip_space();
    else if (sign != '+' && trims_line && at(pos_) == '\n') ++pos_;
  }

  bool at_end(std::string_view end) const {
    const bool has_sign = at(pos_) == '-' || (at(pos_) == '+' && end != "}}");
    return starts_with(end) || (has_sign && source_.substr(pos_ + 1).starts_with(end));
  }

  void skip_comment(size_t tag) {
    const size_t end = source_.find("#}", pos_);
    if (end == kNotFound) raise_at(tag, "a comment without its end '#}}'");
    pos_ = end > pos_ && is_sign(at(end - 1)) ? end - 1 : end;
    skip_end(true);
  }

  /// Skips the rest of {% NAME %} up to "%}". Returns false if it is another tag.
  bool skip_tag_name(std::string_view name) {
    const size_t begin = pos_;
    skip_space();
    if (starts_with(name)) {
      pos_ += name.size();
      skip_space();
      if (at_end("%}")) return true;
    }
    pos_ = begin;
    return false;
  }

  /// Reads {% raw %} ... {% endraw %}; pos_ is behind "{%" and its sign. Returns false for another
  /// tag.
  bool read_raw(size_t tag) {
    if (!skip_tag_name("raw")) return false;
    skip_end(false);
    const size_t text = pos_;
    for (size_t end = source_.find("{%", text); end != kNotFound;
         end = source_.find("{%", end + 1)) {
      pos_ = end + 2;
      const char sign = take_sign();
      if (!skip_tag_name("endraw")) continue;
      add_data(text, end, sign, true);
      skip_end(true);
      return true;
    }
    raise_at(tag, "a raw block without its {{% endraw %}}");
  }

  /// Reads the tokens of {{ ... }} or {% ... %}.
  void read_tag(std::string_view begin, std::string_view end, size_t tag) {
    tokens_.push_back({Type::kOperator, tag, std::string(begin)});
    std::string open;  // the closing brackets that have to follow
    for (skip_space(); !open.empty() || !at_end(end); skip_space()) {
      if (pos_ >= source_.size()) return;  // the parser reports what is missing
      size_t next = pos_;
      const char32_t c = next_code_point(source_, next);
      if (c < 0x80 && is_decimal(static_cast<char>(c))) read_number();
      else if (c == '\'' || c == '"') read_string(static_cast<char>(c));
      else if (c == '_' || is_letter(c)) read_name();
      else read_operator(open, source_.substr(pos_, next - pos_));
    }
    tokens_.push_back({Type::kOperator, pos_, std::string(end)});
    skip_end(/*trims_line=*/end == "%}");
  }

  void read_name() {
    const size_t begin = pos_;
    for (size_t next = pos_; next < source_.size(); pos_ = next) {
      const char32_t c = next_code_point(source_, next);
      if (c != '_' && !is_alphanumeric(c)) break;
    }
    add(Type::kName, begin);
  }

  void read_operator(std::string& open, std::string_view c) {
    constexpr std::string_view kOpening = "([{", kClosing = ")]}";
    const auto* op = std::ranges::find_if(kOperators, [&](auto o) { return starts_with(o); });
    if (op == kOperators.end()) raise_at(pos_, "unexpected character {}", quote(c));
    if (kClosing.find(c) != kNotFound) {
      if (open.empty() || open.back() != c[0]) raise_at(pos_, "unexpected '{}'", c);
      open.pop_back();
    }
    if (const size_t i = kOpening.find(c); i != kNotFound) open += kClosing[i];
    pos_ += op->size();
    add(Type::kOperator, pos_ - op->size());
  }

  /// Reads a number of decimal digits, since templates do not use the other notations of Python.
  void read_number() {
    const size_t begin = pos_;
    const char* first = source_.data() + begin;
    const char* last = source_.data() + source_.size();
    uint64_t integer = 0;
    double number = std::numeric_limits<double>::infinity();  // where it does not fit
    const auto [integer_end, error] = std::from_chars(first, last, integer);
    const char* float_end = std::from_chars(first, last, number).ptr;
    // a.0.5 are two subscripts
    const bool is_index = begin > 0 && source_[begin - 1] == '.';
    const bool is_float = !is_index && float_end > integer_end && float_end[-1] != '.';
    if (!is_float && error != std::errc()) raise_at(begin, "an integer above 64 bits");
    pos_ += static_cast<size_t>((is_float ? float_end : integer_end) - first);
    add(Type::kNumber, begin, is_float ? Value(number) : Value(integer));
  }

  void read_string(char mark) {
    const size_t begin = pos_++;
    std::string text;
    while (pos_ < source_.size() && source_[pos_] != mark) {
      if (source_[pos_] == '\\') read_escape(text);
      else text += source_[pos_++];
    }
    if (pos_ >= source_.size()) raise_at(begin, "a string without its closing quote");
    ++pos_;
    tokens_.push_back({Type::kString, begin, std::move(text)});
  }

  /// Reads an escape of Python's string literals; an unknown one stands for itself.
  void read_escape(std::string& out) {
    constexpr std::string_view kLetters = "\\'\"abfnrtv", kMeanings = "\\'\"\a\b\f\n\r\t\v";
    const char c = at(pos_ + 1);
    const size_t num_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    const size_t known = kLetters.find(c);
    if (known != kNotFound) out += kMeanings[known];
    else if (num_digits == 0 && c != '\n') out += '\\';  // a line end vanishes
    pos_ += known != kNotFound || num_digits > 0 || c == '\n' ? 2 : 1;
    if (num_digits == 0) return;
    uint32_t code = 0;
    const std::string_view digits = source_.substr(std::min(pos_, source_.size()), num_digits);
    const char* end = digits.data() + digits.size();
    const auto [last, error] = std::from_chars(digits.data(), end, code, 16);
    if (error != std::errc() || last != digits.data() + num_digits || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000))
      raise_at(pos_ - 2, "a bad character escape");
    out += to_utf8(code);
    pos_ += num_digits;
  }

  std::string_view source_;
  size_t pos_ = 0;
  std::vector<Token> tokens_ = {};
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace nanovllm::jinja
