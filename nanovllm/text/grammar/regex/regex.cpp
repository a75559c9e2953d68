#include "nanovllm/text/grammar/regex/regex.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/grammar/regex/anchors.h"
#include "nanovllm/text/grammar/regex/character_classes.h"

namespace nanovllm::grammar {

namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr int kMaxGroupDepth = 200;
constexpr int kMaxOpenSequences = 6;  // of parts such as (^|,)
constexpr uint32_t kMaxRepetition = 10'000'000;

// What "(?" can begin and has no place in a derivative.
constexpr std::pair<std::string_view, std::string_view> kUnsupportedGroups[] = {
    {"=", "look-ahead"},    {"!", "look-ahead"},        {"<=", "look-behind"},
    {"<!", "look-behind"},  {">", "an atomic group"},   {"|", "a branch reset group"},
    {"(", "a conditional"}, {"R", "recursion"},         {"&", "recursion"},
    {"P>", "recursion"},    {"P=", "a back-reference"}, {"#", "a comment"}};

bool is_regex_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_regex_digit(char c) { return c >= '0' && c <= '9'; }

// A recursive descent parser that builds the expression as it reads.
class RegexParser {
 public:
  RegexParser(Expressions& e, std::string_view pattern, const RegexOptions& options,
              const std::string& where)
      : e_(e), options_(options), where_(where), pattern_(pattern), anchors_(e, options.coding) {}

  Expr parse() {
    const Anchored all = alternatives();
    if (!at_end()) refuse("a ) without its (");
    return anchors_.whole(all, options_.anywhere);
  }

 private:
  struct Flags {
    bool ignore_case = false, multi_line = false, dot_all = false;
  };
  struct Repetition {
    uint32_t min, max;
  };

  // -- The parts of a pattern, from large to small.
  Anchored alternatives();
  Anchored branch();
  Anchored repeated();
  Anchored atom();
  Anchored group();
  bool group_begin();
  bool flags();
  std::optional<Repetition> repetition();
  std::optional<Repetition> counts();

  Expr char_class();
  bool add_posix_class(CodePoints& set);
  std::optional<char32_t> class_item(CodePoints& set);
  bool add_escaped_class(CodePoints& set);
  CodePoints property();
  char32_t escaped_char(bool in_class);
  char32_t hex_char(size_t num_digits);

  Expr one_of(const CodePoints& set);
  CodePoints folded(const CodePoints& set) const {
    return flags_.ignore_case ? with_case_variants(set) : set;
  }

  // -- The text of the pattern.
  bool at_end() const { return at_ == pattern_.size(); }
  char peek() const { return at_end() ? '\0' : pattern_[at_]; }
  std::string_view rest() const { return pattern_.substr(at_); }
  bool take(std::string_view text) {
    if (!rest().starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t next_char() {
    const char* p = pattern_.data() + at_;
    const char32_t c = next_code_point(p);
    at_ = static_cast<size_t>(p - pattern_.data());
    return c;
  }
  // The text up to `end`, which is skipped.
  std::string_view until(char end, std::string_view what) {
    const size_t found = pattern_.find(end, at_);
    if (found == std::string_view::npos) refuse(fmt::format("{} without its {}", what, end));
    const std::string_view text = pattern_.substr(at_, found - at_);
    at_ = found + 1;
    return text;
  }

  [[noreturn]] void refuse(std::string_view what) const {
    const std::string_view read = pattern_.substr(0, at_);
    const auto num_chars = std::ranges::count_if(read, [](char c) { return !is_continuation(c); });
    fail("{}: regular expression: {} (after character {})", where_, what, num_chars);
  }
  [[noreturn]] void not_supported(std::string_view what) const {
    refuse(fmt::format("{} is not supported", what));
  }

  Expressions& e_;
  const RegexOptions& options_;
  const std::string& where_;
  const std::string_view pattern_;
  size_t at_ = 0;
  int depth_ = 0;
  Flags flags_;
  Anchors anchors_;
  // What was made before, because a pattern may have thousands of large classes.
  std::map<std::vector<std::pair<char32_t, char32_t>>, Expr> characters_;    // by the ranges
  std::map<std::pair<std::string_view, bool>, CodePoints> escaped_classes_;  // by text and flag i
};

Anchored RegexParser::alternatives() {
  std::vector<Anchored> branches;
  do branches.push_back(branch());
  while (take("|"));
  return anchors_.any_of(branches);
}

Anchored RegexParser::branch() {
  std::vector<Anchored> parts;
  while (!at_end() && peek() != '|' && peek() != ')') parts.push_back(repeated());
  // From the end, so that no sequence is taken apart again.
  Anchored out(Expr::kEmpty);
  for (size_t i = parts.size(); i-- > 0;) {
    out = anchors_.sequence(parts[i], out);
    if (out.num_open_sequences > kMaxOpenSequences)
      not_supported(fmt::format("more than {} optional ^ or $ in a row", kMaxOpenSequences));
  }
  return out;
}

Anchored RegexParser::repeated() {
  const Anchored part = atom();
  const auto times = repetition();
  if (!times) return part;
  // A lazy quantifier finds another match, but not another text.
  if (!take("?") && peek() == '+') not_supported("a possessive quantifier");
  if (repetition()) refuse("a quantifier after a quantifier");
  if (part.is_free()) return Anchored(e_.repeat(part.texts[0][0], times->min, times->max));
  if (times->max > 1) not_supported("a repetition of ^ or $");
  if (times->max == 0) return Anchored(Expr::kEmpty);
  return times->min == 1 ? part : anchors_.any_of(std::array{part, Anchored(Expr::kEmpty)});
}

std::optional<RegexParser::Repetition> RegexParser::repetition() {
  if (take("*")) return Repetition{0, kUnlimited};
  if (take("+")) return Repetition{1, kUnlimited};
  if (take("?")) return Repetition{0, 1};
  return counts();
}

// {m}, {m,}, {,n} or {m,n}. Any other { stands for itself.
std::optional<RegexParser::Repetition> RegexParser::counts() {
  if (peek() != '{') return std::nullopt;
  const std::string_view inside = rest().substr(1, rest().find('}') - 1);
  const size_t comma = inside.find(',');
  const std::string_view first = inside.substr(0, comma);
  const std::string_view second =
      comma == std::string_view::npos ? first : inside.substr(comma + 1);
  if (!std::ranges::all_of(first, is_regex_digit) || !std::ranges::all_of(second, is_regex_digit) ||
      (first.empty() && second.empty()) || rest().find('}') == std::string_view::npos)
    return std::nullopt;
  const auto number = [&](std::string_view digits, uint32_t if_empty) {
    if (digits.empty()) return if_empty;
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || value > kMaxRepetition)
      refuse(fmt::format("a repetition of more than {} times", kMaxRepetition));
    return value;
  };
  const Repetition out{number(first, 0), number(second, kUnlimited)};
  if (out.min > out.max) refuse("the bounds of a repetition are out of order");
  at_ += inside.size() + 2;
  return out;
}

Anchored RegexParser::atom() {
  if (counts() || peek() == '*' || peek() == '+' || peek() == '?')
    refuse("a quantifier with nothing to repeat");
  if (take("(")) return group();
  if (take("[")) return Anchored(char_class());
  if (take(".")) {
    const CodePoints newline('\n', '\n');
    return Anchored(one_of(flags_.dot_all ? CodePoints::all() : newline.complement()));
  }
  const Edge edge = flags_.multi_line ? kLineEdge : kTextEdge;
  if (take("^")) return Anchored(Expr::kEmpty, edge, kAnywhere);
  if (take("$")) return Anchored(Expr::kEmpty, kAnywhere, edge);
  if (take("\\A")) return Anchored(Expr::kEmpty, kTextEdge, kAnywhere);
  if (take("\\z") || take("\\Z")) return Anchored(Expr::kEmpty, kAnywhere, kTextEdge);
  if (take("\\")) {
    CodePoints set;
    if (add_escaped_class(set)) return Anchored(one_of(set));
    const char32_t c = escaped_char(/*in_class=*/false);
    return Anchored(one_of(folded({c, c})));
  }
  const char32_t c = next_char();
  return Anchored(one_of(folded({c, c})));
}

// What follows "(".
Anchored RegexParser::group() {
  const Flags outer = flags_;
  if (take("?") && !group_begin()) return Anchored(Expr::kEmpty);
  if (++depth_ > kMaxGroupDepth) refuse(fmt::format("more than {} nested groups", kMaxGroupDepth));
  const Anchored inside = alternatives();
  if (!take(")")) refuse("a ( without its )");
  --depth_;
  flags_ = outer;
  return inside;
}

// What follows "(?". False if it is all of the group: flags for the rest of the group around it.
bool RegexParser::group_begin() {
  for (const auto& [begin, name] : kUnsupportedGroups)
    if (rest().starts_with(begin)) not_supported(name);
  if (take(":")) return true;
  if (!take("P<") && !take("<")) return flags();
  const std::string_view name = until('>', "the name of a group");
  const auto is_word = [](char c) { return c == '_' || is_regex_letter(c) || is_regex_digit(c); };
  if (name.empty() || is_regex_digit(name[0]) || !std::ranges::all_of(name, is_word))
    refuse(fmt::format("\"{}\" is not a name for a group", name));
  return true;
}

bool RegexParser::flags() {
  for (bool on = true;;) {
    if (take(":")) return true;
    if (take(")")) return false;
    if (take("-")) on = false;
    else if (take("i")) flags_.ignore_case = on;
    else if (take("m")) flags_.multi_line = on;
    else if (take("s")) flags_.dot_all = on;
    else if (is_regex_digit(peek())) not_supported("recursion");
    else if (is_regex_letter(peek())) not_supported(fmt::format("the flag {}", peek()));
    else refuse("(? without a kind of group");
  }
}

// What follows "[".
Expr RegexParser::char_class() {
  const bool is_negated = take("^");
  if (peek() == ']')
    refuse("[] and [^] mean different things to different engines; write \\] or [\\s\\S]");
  CodePoints set, listed;  // what has its cases already, and what has not
  while (!take("]")) {
    if (at_end()) refuse("a [ without its ]");
    if (rest().starts_with("&&")) not_supported("an intersection of character classes");
    if (add_posix_class(set)) continue;
    const auto first = class_item(set);
    if (!first) continue;
    const bool is_range = rest().size() > 1 && peek() == '-' && rest()[1] != ']';
    const auto last = is_range && take("-") ? class_item(set) : first;
    if (!last || *last < *first) refuse("the range of a character class is out of order");
    listed.add(*first, *last);
  }
  set.add(folded(listed));
  return one_of(is_negated ? set.complement() : set);
}

// [:name:] or [:^name:]
bool RegexParser::add_posix_class(CodePoints& set) {
  if (!rest().starts_with("[:")) return false;
  const size_t end = rest().find(":]");
  if (end == std::string_view::npos) return false;
  std::string_view name = rest().substr(2, end - 2);
  const bool is_negated = name.starts_with('^');
  if (is_negated) name.remove_prefix(1);
  if (!std::ranges::all_of(name, is_regex_letter)) return false;
  const auto members = posix_class(name);
  if (!members) not_supported(fmt::format("[:{}:]", name));
  set.add(is_negated ? folded(*members).complement() : folded(*members));
  at_ += end + 2;
  return true;
}

// A character; or nothing, and the members of a class such as \d are in `set`.
std::optional<char32_t> RegexParser::class_item(CodePoints& set) {
  if (!take("\\")) return next_char();
  if (add_escaped_class(set)) return std::nullopt;
  return escaped_char(/*in_class=*/true);
}

// \d, \w, \s, \p{..} or one of their complements, without the backslash.
bool RegexParser::add_escaped_class(CodePoints& set) {
  const char letter = peek();
  if (letter == '\0' || std::string_view("dDwWsSpP").find(letter) == std::string_view::npos)
    return false;
  const size_t begin = at_++;
  const char lower = static_cast<char>(std::tolower(letter));
  const CodePoints members = lower == 'p' ? property() : shorthand_class(lower);
  const std::pair key(pattern_.substr(begin, at_ - begin), flags_.ignore_case);
  const auto [known, is_new] = escaped_classes_.try_emplace(key);
  if (is_new) known->second = letter == lower ? folded(members) : folded(members).complement();
  set.add(known->second);
  return true;
}

CodePoints RegexParser::property() {
  std::string_view name = rest().substr(0, 1);
  if (take("{")) name = until('}', "a \\p{");
  else if (is_regex_letter(peek())) ++at_;
  const auto members = property_class(name);
  if (!members) not_supported(fmt::format("the property \\p{{{}}}", name));
  return *members;
}

// What follows a backslash.
char32_t RegexParser::escaped_char(bool in_class) {
  if (at_end()) refuse("a \\ at the end");
  constexpr std::string_view kLetters = "tnrfvae", kMeanings = "\t\n\r\f\v\a\x1B";
  const char32_t c = next_char();
  if (c >= 0x80) return c;
  const char letter = static_cast<char>(c);
  if (const size_t i = kLetters.find(letter); i != std::string_view::npos) return kMeanings[i];
  if (letter == 'x' || letter == 'u' || letter == 'U') {
    const char32_t unit = hex_char(letter == 'x' ? 2 : letter == 'u' ? 4 : 8);
    if (unit < 0xD800 || unit > 0xDFFF) return unit;
    const char32_t low = take("\\u") ? hex_char(4) : 0;
    if (unit > 0xDBFF || low < 0xDC00 || low > 0xDFFF) refuse("half of a surrogate pair");
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
  }
  if (letter == 'c' && is_regex_letter(peek())) return next_char() & 31;
  if (letter == '0' && !is_regex_digit(peek())) return 0;
  if (letter == 'b' && in_class) return '\b';
  if (letter == 'b' || letter == 'B') not_supported(fmt::format("the word border \\{}", letter));
  if (letter == 'k' || (is_regex_digit(letter) && letter != '0'))
    not_supported(fmt::format("the back-reference \\{}", letter));
  if (is_regex_letter(letter) || is_regex_digit(letter))
    not_supported(fmt::format("the escape \\{}", letter));
  return c;
}

// This many hexadecimal digits, or any number of them in braces.
char32_t RegexParser::hex_char(size_t num_digits) {
  std::string_view digits = rest().substr(0, num_digits);
  if (take("{")) digits = until('}', "the escape of a character");
  else if (digits.size() == num_digits) at_ += num_digits;
  else digits = {};
  uint32_t c = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), c, 16);
  if (error != std::errc() || end != digits.data() + digits.size() || c > 0x10FFFF)
    refuse(fmt::format("\"{}\" is not the number of a character", digits));
  return c;
}

Expr RegexParser::one_of(const CodePoints& set) {
  const auto [found, is_new] = characters_.try_emplace(set.ranges());
  if (is_new) found->second = character(e_, set, options_.coding);
  return found->second;
}

}  // namespace

Expr parse_regex(Expressions& e, std::string_view pattern, const RegexOptions& options,
                 const std::string& where) {
  require(pattern.size() <= kMaxPatternBytes,
          "{}: a regular expression of {} bytes; at most {} are supported", where, pattern.size(),
          kMaxPatternBytes);
  require_utf8(pattern, where);
  return RegexParser(e, pattern, options, where).parse();
}

}  // namespace nanovllm::grammar
