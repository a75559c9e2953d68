#include "nanovllm/text/grammar/regex/character_classes.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/pre_tokenizer/properties.h"
#include "nanovllm/text/unicode.h"

namespace nanovllm::grammar {

using namespace std::string_view_literals;

namespace {

// The first and the last character of each range.
constexpr std::pair<std::string_view, std::string_view> kAsciiClasses[] = {
    {"alnum", "09AZaz"},
    {"alpha", "AZaz"},
    {"ascii", "\0\x7F"sv},
    {"blank", "\t\t  "},
    {"cntrl", "\0\x1F\x7F\x7F"sv},
    {"digit", "09"},
    {"graph", "!~"},
    {"lower", "az"},
    {"print", " ~"},
    {"punct", "!/:@[`{~"},
    {"space", "\t\r  "},
    {"upper", "AZ"},
    {"word", "09AZ__az"},
    {"xdigit", "09AFaf"}};

// Planes 4 to 13 are unassigned. U+40000 stands for all of them.
constexpr char32_t kFirstUnassigned = 0x40000, kLastUnassigned = 0xDFFFF;

// The characters that PCRE2 finds in a class of these items.
CodePoints class_members(const std::string& items) {
  std::string text;
  const CodePoints all = CodePoints::all();
  for (const auto& [first, last] : all.ranges())
    for (char32_t c = first; c <= last; ++c)
      if (c <= kFirstUnassigned || c > kLastUnassigned) text += to_utf8(c);

  const std::string pattern = "[" + items + "]+";
  int error = 0;
  size_t error_at = 0;
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP, &error, &error_at, nullptr),
      pcre2_code_free);
  if (code == nullptr) throw std::bad_alloc();  // property_items() has compiled the items before
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
  if (data == nullptr) throw std::bad_alloc();

  CodePoints out;
  const size_t* const range = pcre2_get_ovector_pointer(data.get());
  for (size_t at = 0;; at = range[1]) {
    const int rc = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                               at, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) return out;
    check(rc > 0, "PCRE2 returned {} for {}", rc, pattern);
    const std::string_view found(&text[range[0]], range[1] - range[0]);
    const char32_t last = code_point_at(found.data() + last_char(found));
    out.add(code_point_at(found.data()), last == kFirstUnassigned ? kLastUnassigned : last);
  }
}

char32_t simple_fold(char32_t c) {
  const auto from = static_cast<utf8proc_int32_t>(c);
  utf8proc_int32_t to[8];
  int boundary = 0;
  const auto n = utf8proc_decompose_char(from, to, std::size(to), UTF8PROC_CASEFOLD, &boundary);
  if (n == 1) return static_cast<char32_t>(to[0]);
  // Several characters are the full folding. The simple one is the lower case, except that a dotted
  // capital I has none.
  return c == 0x130 ? c : static_cast<char32_t>(utf8proc_tolower(from));
}

using CharPair = std::pair<char32_t, char32_t>;

// All pairs of different characters that have the same folding.
std::vector<CharPair> case_pairs() {
  constexpr char32_t kEndOfCased = 0x20000;  // no character of a later plane has a case
  std::map<char32_t, std::vector<char32_t>> variants;
  for (char32_t c = 0; c < kEndOfCased; ++c)
    if (const char32_t folded = simple_fold(c); folded != c) variants[folded].push_back(c);
  std::vector<CharPair> pairs;
  for (auto& [folded, chars] : variants) {
    chars.push_back(folded);
    for (const char32_t a : chars)
      for (const char32_t b : chars)
        if (a != b) pairs.emplace_back(a, b);
  }
  std::ranges::sort(pairs);
  return pairs;
}

}  // namespace

CodePoints shorthand_class(char letter) {
  if (letter == 'd') return *posix_class("digit");
  if (letter == 'w') return *posix_class("word");
  CodePoints space = *posix_class("space");
  for (const char32_t c : {0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF})
    space.add(c, c);
  space.add(0x2000, 0x200A);
  return space;
}

std::optional<CodePoints> posix_class(std::string_view name) {
  const auto* const known =
      std::ranges::find(kAsciiClasses, name, &std::pair<std::string_view, std::string_view>::first);
  if (known == std::end(kAsciiClasses)) return std::nullopt;
  CodePoints out;
  for (size_t i = 0; i < known->second.size(); i += 2)
    out.add(static_cast<unsigned char>(known->second[i]),
            static_cast<unsigned char>(known->second[i + 1]));
  return out;
}

std::optional<CodePoints> property_class(std::string_view name) {
  // One spelling of each name, so that there are few of them to remember.
  std::string key;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '=' && c != '&') return std::nullopt;
    key += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const std::string_view prefix : {"gc="sv, "generalcategory="sv})
    if (key.starts_with(prefix)) key.erase(0, prefix.size());

  static std::mutex mutex;
  static std::map<std::string, std::optional<CodePoints>> known;
  const std::scoped_lock lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const std::string items = property_items(key);
  if (items.empty()) return std::nullopt;
  return known[key] = class_members(items);
}

CodePoints with_case_variants(const CodePoints& set) {
  static const std::vector<CharPair> pairs = case_pairs();
  std::vector<char32_t> others;
  for (const auto& [first, last] : set.ranges())
    for (auto pair = std::ranges::lower_bound(pairs, first, {}, &CharPair::first);
         pair != pairs.end() && pair->first <= last; ++pair)
      others.push_back(pair->second);
  std::ranges::sort(others);
  CodePoints out;
  for (const char32_t c : others) out.add(c, c);
  out.add(set);
  return out;
}

}  // namespace nanovllm::grammar
