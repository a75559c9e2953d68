#include "nanovllm/text/tokenizers_unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <span>

#include "nanovllm/text/unicode.h"

namespace nanovllm {

namespace {

struct CategoryRange {
  char32_t first, last;
};

// In each range, the characters of the named category are newer than the tables of `tokenizers`.
// tests/text/tokenizers_live_test.py compares all characters.
constexpr CategoryRange kNewerPunctuation[] = {
    {0x061D, 0x061D},   {0x09FD, 0x0A76},   {0x0C77, 0x0C84},   {0x1B4E, 0x1B4F},
    {0x1B7D, 0x1B7F},   {0x2E43, 0x2E5D},   {0x10D6E, 0x10F89}, {0x113D4, 0x1145D},
    {0x11660, 0x116B9}, {0x1183B, 0x11FFF}, {0x12FF1, 0x12FF2}, {0x16D6D, 0x16FE2},
    {0x1E5FF, 0x1E95F}};
constexpr CategoryRange kNewerMarks[] = {
    {0x07FD, 0x07FD},   {0x0897, 0x08D3},   {0x09FE, 0x09FE},   {0x0AFA, 0x0AFF},
    {0x0B55, 0x0B55},   {0x0C04, 0x0C3C},   {0x0CF3, 0x0D00},   {0x0D3B, 0x0D3C},
    {0x0D81, 0x0D81},   {0x0EBA, 0x0EBA},   {0x0ECE, 0x0ECE},   {0x1715, 0x1715},
    {0x180F, 0x180F},   {0x1ABF, 0x1AEB},   {0x1CF7, 0x1CF7},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0xA8FF, 0xA8FF},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
    {0x110C2, 0x110C2}, {0x11145, 0x11146}, {0x111C9, 0x111C9}, {0x111CE, 0x111CF},
    {0x11241, 0x11241}, {0x1133B, 0x1133B}, {0x113B8, 0x113E2}, {0x1145E, 0x1145E},
    {0x116D0, 0x116D0}, {0x1182C, 0x11B67}, {0x11D31, 0x1612F}, {0x16F4F, 0x16F4F},
    {0x16F7F, 0x16F87}, {0x16FE4, 0x16FF1}, {0x1CF00, 0x1CF46}, {0x1E08F, 0x1E6F5}};
constexpr CategoryRange kNewerNonspacingMarks[] = {
    {0x07FD, 0x07FD},   {0x0897, 0x08E1},   {0x09FE, 0x09FE},   {0x0AFA, 0x0AFF},
    {0x0B55, 0x0B55},   {0x0C04, 0x0C3C},   {0x0CF3, 0x0D00},   {0x0D3B, 0x0D3C},
    {0x0D81, 0x0D81},   {0x0EBA, 0x0EBA},   {0x0ECE, 0x0ECE},   {0x180F, 0x1886},
    {0x1ABF, 0x1AEB},   {0x1DF6, 0x1DFB},   {0xA82C, 0xA82C},   {0xA8C5, 0xA8C5},
    {0xA8FF, 0xA8FF},   {0xA9BD, 0xA9BD},   {0x10D24, 0x10F85}, {0x11070, 0x11074},
    {0x110C2, 0x110C2}, {0x111C9, 0x111C9}, {0x111CF, 0x111CF}, {0x1123E, 0x11241},
    {0x1133B, 0x1133B}, {0x113B8, 0x1145E}, {0x116D0, 0x116D0}, {0x1182F, 0x1612F},
    {0x16F4F, 0x16F4F}, {0x16FE4, 0x16FE4}, {0x1CF00, 0x1CF46}, {0x1E000, 0x1E6F5},
    {0x1E944, 0x1E94A}};
constexpr CategoryRange kNewerControls[] = {
    {0x0890, 0x0891}, {0x08E2, 0x08E2}, {0x110CD, 0x110CD}, {0x13430, 0x1343F}};
constexpr CategoryRange kNewerComposites[] = {
    {0x32FF, 0x32FF},   {0xA7F1, 0xA7F4},   {0xAB69, 0xAB69},   {0x105C9, 0x105E4},
    {0x10781, 0x107BA}, {0x11383, 0x113C8}, {0x11938, 0x11938}, {0x16121, 0x16128},
    {0x16D68, 0x16D6A}, {0x1CCD6, 0x1CCF9}, {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C},
    {0x1FBF0, 0x1FBF9}};
constexpr CategoryRange kNewerNumbers[] = {{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}};

// Letters whose lower case is `distance` after them.
struct Cased {
  char32_t first, last;
  int distance;
};
constexpr Cased kNewerCased[] = {{0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
                                 {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
                                 {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
                                 {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
                                 {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 27}};

template <class Ranges>
const auto* find(const Ranges& ranges, char32_t c) {
  const auto* const at =
      std::ranges::lower_bound(ranges, c, {}, [](const auto& r) { return r.last; });
  return at != std::end(ranges) && at->first <= c ? at : nullptr;
}

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool is_from(char32_t c, utf8proc_category_t first, utf8proc_category_t last) {
  const auto of_c = category(c);
  return of_c >= first && of_c <= last;
}

}  // namespace

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') ||
           (c > 'z' && c < 0x7F);
  // U+166D became a symbol, and U+111C9 a mark.
  if (c == 0x166D || c == 0x111C9) return true;
  return is_from(c, UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO) &&
         find(kNewerPunctuation, c) == nullptr;
}

bool is_mark(char32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3) return true;  // became letters later
  return is_from(c, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME) && !is_newer_mark(c);
}

bool is_nonspacing_mark(char32_t c) {
  if (c == 0x1734) return true;  // became a spacing mark later
  return category(c) == UTF8PROC_CATEGORY_MN && find(kNewerNonspacingMarks, c) == nullptr;
}

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const auto of_c = category(c);
  return (of_c == UTF8PROC_CATEGORY_CC || of_c == UTF8PROC_CATEGORY_CF ||
          of_c == UTF8PROC_CATEGORY_CO) &&
         find(kNewerControls, c) == nullptr;
}

bool is_number(char32_t c) {
  return (CharTable::get()[c] & kNumber) != 0 || find(kNewerNumbers, c) != nullptr;
}

bool is_newer_composite(char32_t c) { return find(kNewerComposites, c) != nullptr; }

bool is_newer_mark(char32_t c) { return find(kNewerMarks, c) != nullptr; }

void append_lower(char32_t c, std::string& out) {
  if (c == 0x130) {
    out += "i\u0307";
  } else if (const Cased* const cased = find(kNewerCased, c)) {
    out += to_utf8(c + static_cast<char32_t>(cased->distance));
  } else {
    out += to_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
  }
}

}  // namespace nanovllm
