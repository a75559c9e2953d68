#include "nanovllm/text/pre_tokenizer/oniguruma.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/pre_tokenizer/properties.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm {

namespace {

constexpr std::string_view kAnyCharacter = "(?s:.)";
constexpr int kMaxRepetitions = 999;

bool is_ascii_letter_or_digit(char32_t c) {
  return c < 0x80 && std::isalnum(static_cast<unsigned char>(c)) != 0;
}

// A set of characters. PCRE2's classes hold neither complements of several items nor other sets, so
// these become alternatives.
struct Set {
  std::string items;                // the items of a class, without its brackets
  std::vector<std::string> others;  // expressions that match one character each

  std::string expression(bool negated) const {
    if (items.empty() && others.size() == 1 && !negated) return others[0];
    if (others.empty())
      return items.empty() ? std::string(negated ? kAnyCharacter : "(?!)")
                           : fmt::format("[{}{}]", negated ? "^" : "", items);
    std::string all = items.empty() ? "" : "[" + items + "]";
    for (const std::string& other : others) all += (all.empty() ? "" : "|") + other;
    return negated ? fmt::format("(?:(?!{}){})", all, kAnyCharacter) : "(?:" + all + ")";
  }
  void add(const Set& set, bool negated) {
    if (!negated) {
      items += set.items;
      others.insert(others.end(), set.others.begin(), set.others.end());
    } else {
      others.push_back(set.expression(/*negated=*/true));
    }
  }
};

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string translate() {
    alternatives({});
    refuse_if(at_ < pattern_.size(), at_, 1);  // a ')' too many
    return std::move(out_);
  }

 private:
  struct Options {
    bool ignores_case = false, extended = false;
  };

  void refuse_if(bool refused, size_t at, size_t len) const {
    require(!refused, "{}: '{}' at byte {} of the pattern '{}' is not supported", where_,
            pattern_.substr(at, len), at, pattern_);
  }

  std::string_view rest() const { return pattern_.substr(at_); }
  bool at_end() const { return at_ == pattern_.size(); }
  bool take_if(std::string_view text) {
    if (!rest().starts_with(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_character() {
    const char* const begin = pattern_.data() + at_;
    const char* p = begin;
    const char32_t c = next_code_point(p);
    at_ += static_cast<size_t>(p - begin);
    return c;
  }
  static void append_literal(char32_t c, std::string& out) {
    if (c < 0x80 && !is_ascii_letter_or_digit(c) && c > ' ') out += '\\';
    out += to_utf8(c);
  }

  // Translates everything up to the ')' that closes the group, or to the end.
  void alternatives(Options options) {
    constexpr size_t kNone = std::string::npos;
    size_t item = kNone;    // where the last item begins in out_, if it can be repeated
    bool repeated = false;  // whether that item has a quantifier
    while (!at_end() && rest()[0] != ')') {
      const size_t begin = at_, item_begin = out_.size();
      if (options.extended && skip_comment()) continue;
      if (item != kNone && take_quantifier(item, repeated)) {
        repeated = true;
        continue;
      }
      item = item_begin;
      repeated = false;
      switch (const char32_t c = take_character(); c) {
        case '|':
          out_ += '|';
          item = kNone;
          break;
        case '*':
        case '+':
        case '?':
          refuse_if(true, begin, 1);
          break;
        case '^':
        case '$':
        case '.':
          out_ += static_cast<char>(c);
          break;
        case '[':
          out_ += set(options).expression(false);
          break;
        case '(':
          if (!take_group(begin, options)) item = kNone;
          break;
        case '\\':
          take_escape(begin, options);
          break;
        default:
          append_literal(c, out_);
      }
    }
  }

  // Skips white space and comments in a pattern with (?x).
  bool skip_comment() {
    if (take_if("#")) {
      while (!at_end() && !take_if("\n")) ++at_;
      return true;
    }
    return take_if(" ") || take_if("\t") || take_if("\n") || take_if("\r") || take_if("\f") ||
           take_if("\v");
  }

  // Takes a quantifier of the item that begins at `item` in out_.
  bool take_quantifier(size_t item, bool repeated) {
    const size_t begin = at_;
    std::string quantifier;
    bool exact = false;
    if (take_if("*") || take_if("+") || take_if("?")) quantifier = pattern_[begin];
    else if (!take_interval(quantifier, exact)) return false;
    // A '+' after an interval repeats it, and so does a '?' after {n}.
    const bool is_interval = pattern_[begin] == '{';
    if (!exact && take_if("?")) quantifier += '?';
    else if (!is_interval && take_if("+")) quantifier += '+';
    if (repeated) {
      out_.insert(item, "(?:");
      out_ += ')';
    }
    out_ += quantifier;
    return true;
  }

  // {n}, {n,}, {,n} or {n,m}; anything else in braces is literal text.
  bool take_interval(std::string& quantifier, bool& exact) {
    const size_t begin = at_;
    int least = 0, most = 0;
    if (!take_if("{")) return false;
    const bool has_least = take_number(least);
    const bool has_comma = take_if(",");
    const bool has_most = has_comma && take_number(most);
    if (!take_if("}") || (!has_least && !has_most)) {
      at_ = begin;
      return false;
    }
    refuse_if(least > kMaxRepetitions || most > kMaxRepetitions || (has_most && most < least),
              begin, at_ - begin);
    exact = !has_comma;
    quantifier = exact      ? fmt::format("{{{}}}", least)
                 : has_most ? fmt::format("{{{},{}}}", least, most)
                            : fmt::format("{{{},}}", least);
    return true;
  }

  bool take_number(int& number) {
    const char* const begin = pattern_.data() + at_;
    const char* const end = pattern_.data() + pattern_.size();
    if (begin == end || *begin < '0' || *begin > '9') return false;
    const auto [after, error] = std::from_chars(begin, end, number);
    if (error != std::errc()) number = kMaxRepetitions + 1;
    at_ += static_cast<size_t>(after - begin);
    return true;
  }

  // Translates what follows a '('. Returns false if it cannot be repeated.
  bool take_group(size_t begin, Options options) {
    refuse_if(rest().starts_with("*"), begin, 2);
    if (take_if("?#")) {
      while (!at_end() && rest()[0] != ')') ++at_;
      close_group(begin);
      return false;
    }
    for (const std::string_view opening : {"?:", "?=", "?!", "?>", "?<=", "?<!"})
      if (take_if(opening)) return finish_group(begin, opening, options);
    if (!take_if("?")) return finish_group(begin, "", options);
    if (rest().starts_with("<") || rest().starts_with("'")) {
      const std::string name = take_name(begin);
      return finish_group(begin, "?<" + name + ">", options);
    }
    return take_options(begin, options);
  }

  bool finish_group(size_t begin, std::string_view opening, Options options) {
    out_ += '(';
    out_ += opening;
    alternatives(options);
    close_group(begin);
    out_ += ')';
    return true;
  }

  void close_group(size_t begin) {
    require(take_if(")"), "{}: bad pattern '{}': no ) for the ( at byte {}", where_, pattern_,
            begin);
  }

  // (?imx-imx:...), or (?imx-imx), which holds up to the end of the group around it.
  bool take_options(size_t begin, Options options) {
    std::string on, off;
    bool turns_on = true;
    for (; !at_end() && rest()[0] != ':' && rest()[0] != ')'; ++at_) {
      const char letter = rest()[0];
      if (letter == '-') {
        turns_on = false;
        continue;
      }
      refuse_if(letter != 'i' && letter != 'm' && letter != 'x', begin, at_ + 1 - begin);
      if (letter == 'i') options.ignores_case = turns_on;
      if (letter == 'x') options.extended = turns_on;
      else (turns_on ? on : off) += letter == 'm' ? 's' : 'i';  // PCRE2's name for Ruby's m
    }
    out_ += "(?" + on + (off.empty() ? "" : "-" + off) + ":";
    const bool is_group = take_if(":");
    if (!is_group) close_group(begin);
    alternatives(options);
    if (is_group) close_group(begin);
    out_ += ')';
    return is_group;
  }

  // <name> or 'name'
  std::string take_name(size_t begin) {
    const char closing = rest()[0] == '<' ? '>' : '\'';
    const size_t end = pattern_.find(closing, at_ + 1);
    refuse_if(end == std::string_view::npos, begin, 3);
    std::string name(pattern_.substr(at_ + 1, end - at_ - 1));
    const auto is_word = [](char c) {
      return is_ascii_letter_or_digit(static_cast<unsigned char>(c)) || c == '_';
    };
    refuse_if(name.empty() || name.size() > 32 || (name[0] >= '0' && name[0] <= '9') ||
                  !std::ranges::all_of(name, is_word),
              begin, end + 1 - begin);
    at_ = end + 1;
    return name;
  }

  // Translates what follows a '\' outside of a set.
  void take_escape(size_t begin, Options options) {
    refuse_if(at_end(), begin, 1);
    if (bool negated = false; auto known = take_shorthand(negated)) {
      if (known->items == kWordItems) known->items += kMoreWordItems;
      // Outside of a set, \p{Lu} is upper case even if case is ignored.
      const std::string expression = known->expression(negated);
      out_ += options.ignores_case ? "(?-i:" + expression + ")" : expression;
      return;
    }
    const std::string word = fmt::format("[{}{}]", kWordItems, kMoreWordItems);
    switch (rest()[0]) {
      case 'A':
      case 'Z':
      case 'z':
        out_ += fmt::format("\\{}", rest()[0]);
        break;
      case 'R':
        out_ += R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))";
        break;
      case 'N':
        out_ += R"([^\n])";
        break;
      case 'O':
        out_ += kAnyCharacter;
        break;
      case 'b':
        out_ += fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word);
        break;
      case 'B':
        out_ += fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
        break;
      case 'k':
        ++at_;
        refuse_if(!rest().starts_with("<") && !rest().starts_with("'"), begin, 3);
        out_ += "\\k<" + take_name(begin) + ">";
        return;
      case 'G':
      case 'K':
      case 'X':
      case 'g':
      case 'y':
      case 'Y':
        refuse_if(true, begin, 2);
        break;
      default:
        if (const size_t group = take_group_number(); group > 0) {
          out_ += fmt::format("\\g{{{}}}", group);
          return;
        }
        append_literal(take_escaped_character(begin), out_);
        return;
    }
    ++at_;
  }

  // The number of a group, unless the digits are the octal code of a character.
  size_t take_group_number() {
    const size_t begin = at_;
    int number = 0;
    if (rest()[0] == '0' || !take_number(number)) return 0;
    const auto num_groups = std::ranges::count(pattern_, '(');
    if (number <= 9 || number <= num_groups) return static_cast<size_t>(number);
    at_ = begin;
    return 0;
  }

  // Takes \s \S \w \W \d \D \h \H or \p{...}. Returns nothing, and takes nothing, for anything
  // else.
  std::optional<Set> take_shorthand(bool& negated) {
    const char letter = rest()[0];
    negated = std::isupper(static_cast<unsigned char>(letter)) != 0;
    std::string_view items;
    switch (std::tolower(static_cast<unsigned char>(letter))) {
      case 's':
        items = kSpaceItems;
        break;
      case 'w':
        items = kWordItems;
        break;
      case 'd':
        items = kDigitItems;
        break;
      case 'h':
        items = kHexDigitItems;
        break;
      case 'p':
        return rest().substr(1).starts_with("{") ? take_property(negated) : std::nullopt;
      default:
        return {};
    }
    ++at_;
    return Set{std::string(items), {}};
  }

  // Takes "p{...}" or "P{...}".
  std::optional<Set> take_property(bool& negated) {
    const size_t begin = at_ - 1;
    const size_t end = pattern_.find('}', at_);
    refuse_if(end == std::string_view::npos, begin, 3);
    std::string_view name = pattern_.substr(at_ + 2, end - at_ - 2);
    if (name.starts_with("^")) {
      negated = !negated;
      name.remove_prefix(1);
    }
    std::string items = property_items(name);
    refuse_if(items.empty(), begin, end + 1 - begin);
    at_ = end + 1;
    return Set{std::move(items), {}};
  }

  // Takes the character that follows a '\'.
  char32_t take_escaped_character(size_t begin) {
    const char32_t c = take_character();
    switch (c) {
      case 't':
        return '\t';
      case 'n':
        return '\n';
      case 'r':
        return '\r';
      case 'f':
        return '\f';
      case 'v':
        return '\v';
      case 'a':
        return '\a';
      case 'e':
        return 0x1B;
      case 'u':
        return take_code(begin, 16, 4, 4);
      case 'x': {
        if (!take_if("{")) return take_bytes(begin, take_code(begin, 16, 1, 2));
        const char32_t code = take_code(begin, 16, 1, 8);
        refuse_if(!take_if("}"), begin, at_ - begin + 1);
        return code;
      }
      case 'c':
      case 'C':
      case 'M':
      case 'o':
        refuse_if(true, begin, 2);
        break;
      case '0':
      case '1':
      case '2':
      case '3':
      case '4':
      case '5':
      case '6':
      case '7':
        --at_;
        return take_bytes(begin, take_code(begin, 8, 1, 3));
      default:
        break;
    }
    return c;
  }

  char32_t take_code(size_t begin, int base, size_t least_digits, size_t most_digits) {
    uint32_t code = 0;
    const char* const digits = pattern_.data() + at_;
    const char* const end = digits + std::min(most_digits, rest().size());
    const auto [after, error] = std::from_chars(digits, end, code, base);
    const auto num_digits = static_cast<size_t>(after - digits);
    at_ += num_digits;
    const bool is_surrogate = code >= 0xD800 && code < 0xE000;
    refuse_if(error != std::errc() || num_digits < least_digits || code > 0x10FFFF || is_surrogate,
              begin, std::max<size_t>(at_ - begin, 2));
    return code;
  }

  // Takes the bytes of a character that follow the first one; \xHH and \ooo are bytes of UTF-8.
  char32_t take_bytes(size_t begin, char32_t first) {
    if (first < 0x80) return first;
    std::string bytes(1, static_cast<char>(first));
    while (character_len(bytes) == 0 && bytes.size() < 4 && take_if("\\")) {
      const bool is_hex = take_if("x");
      bytes += static_cast<char>(is_hex ? take_code(begin, 16, 2, 2) : take_code(begin, 8, 3, 3));
    }
    refuse_if(first > 0xFF || character_len(bytes) != bytes.size(), begin, at_ - begin);
    return code_point_at(bytes.data());
  }

  // Translates what follows a '[': the intersection of sets that are separated by "&&".
  Set set(Options options) {
    const size_t begin = at_ - 1;
    const bool negated = take_if("^");
    std::vector<Set> sets(1);
    for (bool is_first = true;; is_first = false) {
      require(!at_end(), "{}: bad pattern '{}': no ] for the [ at byte {}", where_, pattern_,
              begin);
      if (!is_first && take_if("]")) break;
      if (take_if("&&")) sets.emplace_back();
      else take_member(sets.back(), options);
    }
    Set all = std::move(sets[0]);
    if (sets.size() > 1) {
      std::string expression;
      for (size_t i = 1; i < sets.size(); ++i)
        expression += fmt::format("(?={})", sets[i].expression(false));
      all = {"", {"(?:" + expression + all.expression(false) + ")"}};
    }
    if (!negated) return all;
    Set complement;
    complement.add(all, /*negated=*/true);
    return complement;
  }

  // Takes a member of a set: a character, a range, a shorthand, a POSIX bracket or another set.
  void take_member(Set& to, Options options) {
    const size_t begin = at_;
    if (take_if("[:")) {
      const bool negated = take_if("^");
      const size_t end = pattern_.find(":]", at_);
      refuse_if(end == std::string_view::npos, begin, 2);
      const std::string_view name = pattern_.substr(at_, end - at_);
      const std::string_view items = posix_items(name);
      refuse_if(items.empty() || (options.ignores_case && depends_on_case(name)), begin,
                end + 2 - begin);
      at_ = end + 2;
      return to.add({std::string(items), {}}, negated);
    }
    if (take_if("[")) return to.add(set(options), false);
    if (take_if("\\")) {
      refuse_if(at_end(), begin, 1);
      bool negated = false;
      if (const auto known = take_shorthand(negated)) {
        const std::string_view text = pattern_.substr(begin, at_ - begin);
        refuse_if(options.ignores_case && text.starts_with("\\p") &&
                      depends_on_case(text.substr(3, text.size() - 4)),
                  begin, at_ - begin);
        return to.add(*known, negated);
      }
      at_ = begin;
    }
    const char32_t first = take_set_character();
    append_literal(first, to.items);
    if (!rest().starts_with("-") || rest().starts_with("-]") || rest().starts_with("-&&")) return;
    ++at_;
    refuse_if(at_end() || rest()[0] == '[', begin, at_ - begin);
    const size_t last_begin = at_;
    const char32_t last = take_set_character();
    refuse_if(last < first || (pattern_[last_begin] == '\\' &&
                               std::string_view("sSwWdDhHpP").find(pattern_[last_begin + 1]) !=
                                   std::string_view::npos),
              begin, at_ - begin);
    to.items += '-';
    append_literal(last, to.items);
  }

  char32_t take_set_character() {
    const size_t begin = at_;
    if (!take_if("\\")) return take_character();
    refuse_if(at_end(), begin, 1);
    if (take_if("b")) return '\b';
    return take_escaped_character(begin);
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string to_pcre(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).translate();
}

}  // namespace nanovllm
