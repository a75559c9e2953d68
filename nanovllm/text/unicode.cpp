#include "nanovllm/text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/tokenizers_unicode.h"

namespace nanovllm {

namespace {

struct NewRange {
  char32_t first, last;
};

// Letters and numbers that Unicode 15.1 and 16.0 added (DerivedGeneralCategory.txt), for a utf8proc
// that is older.
constexpr NewRange kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr NewRange kNewNumbers[] = {{0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
                                    {0x16130, 0x16139}, {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9},
                                    {0x1E5F1, 0x1E5FA}};

uint8_t class_of(char32_t c) {
  if (c == '\r' || c == '\n') return kSpace | kNewline;
  if ((c >= '\t' && c <= '\r') || c == 0x85) return kSpace;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  const auto is_from = [&](utf8proc_category_t first, utf8proc_category_t last) {
    return category >= first && category <= last;
  };
  if (is_from(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO)) return kLetter;
  if (is_from(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO)) return kNumber;
  return is_from(UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZP) ? kSpace : kOther;
}

using Chars = std::vector<utf8proc_int32_t>;

// Appends the full decomposition of `c`: the canonical one unless `options` has UTF8PROC_COMPAT.
void decompose(char32_t c, Chars& out, int options = UTF8PROC_DECOMPOSE) {
  constexpr size_t kMaxParts = 32;  // the longest has 18
  const size_t before = out.size();
  out.resize(before + kMaxParts);
  int boundary = 0;
  const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), &out[before], kMaxParts,
                                         static_cast<utf8proc_option_t>(options), &boundary);
  check(n >= 0 && n <= static_cast<utf8proc_ssize_t>(kMaxParts), "decomposition of U+{:04X}",
        static_cast<uint32_t>(c));
  out.resize(before + static_cast<size_t>(n));
}

// Composes characters that are in canonical order.
void compose(Chars& chars) {
  constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  const auto n =
      utf8proc_normalize_utf32(chars.data(), static_cast<utf8proc_ssize_t>(chars.size()), kOptions);
  check(n >= 0, "composition failed");
  chars.resize(static_cast<size_t>(n));
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// `tokenizers` has the classes of Unicode 10.
int older_combining_class(utf8proc_int32_t c) {
  const int of_c = combining_class(c);
  return of_c != 0 && is_newer_mark(static_cast<char32_t>(c)) ? 0 : of_c;
}

// Puts marks into the canonical order (Unicode 15, section 3.11, D109). utf8proc_map() sorts them
// by swapping neighbours, which takes quadratic time for a long run of marks. So decomposition and
// ordering are done here, and utf8proc does the composition.
void order_marks(Chars& chars, int (*class_of_mark)(utf8proc_int32_t)) {
  const auto is_mark = [&](utf8proc_int32_t c) { return class_of_mark(c) != 0; };
  for (auto marks = chars.begin(); marks != chars.end();) {
    marks = std::find_if(marks, chars.end(), is_mark);
    const auto marks_end = std::find_if_not(marks, chars.end(), is_mark);
    std::ranges::stable_sort(marks, marks_end, {}, class_of_mark);
    marks = marks_end;
  }
}

void append_chars(std::string& out, const Chars& chars) {
  for (const utf8proc_int32_t c : chars) out += to_utf8(static_cast<char32_t>(c));
}

void append_nfc(std::string& out, std::string_view text) {
  Chars chars;
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) decompose(next_code_point(p), chars);
  order_marks(chars, combining_class);
  compose(chars);
  append_chars(out, chars);
}

constexpr bool is_hangul_syllable(char32_t c) { return c >= 0xAC00 && c <= 0xD7A3; }

}  // namespace

CharTable::CharTable() {
  for (char32_t c = 0; c < classes_.size(); ++c) classes_[c] = class_of(c);
  const auto add = [&](const NewRange& range, CharClass cls) {
    std::fill(&classes_[range.first], &classes_[range.last] + 1, static_cast<uint8_t>(cls));
  };
  for (const NewRange& range : kNewLetters) add(range, kLetter);
  for (const NewRange& range : kNewNumbers) add(range, kNumber);

  for (char32_t c = 0; c < classes_.size(); ++c) {
    const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    if (property->combining_class != 0) classes_[c] |= kMark;
    if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0 ||
        is_hangul_syllable(c))
      continue;
    Chars parts;
    decompose(c, parts);
    for (size_t i = 1; i < parts.size(); ++i) classes_[parts[i]] |= kUnstable;
    compose(parts);
    if (parts.size() != 1 || parts[0] != static_cast<utf8proc_int32_t>(c)) classes_[c] |= kUnstable;
  }
  for (char32_t vowel = 0x1161; vowel <= 0x1175; ++vowel) classes_[vowel] |= kUnstable;
  for (char32_t final = 0x11A8; final <= 0x11C2; ++final) classes_[final] |= kUnstable;
}

const CharTable& CharTable::get() {
  static const CharTable table;
  return table;
}

std::string_view to_nfc(std::string_view text, std::string& storage) {
  const CharTable& table = CharTable::get();
  const auto is_below_marks = [](char c) { return static_cast<unsigned char>(c) < 0xCC; };
  const char* const end = text.data() + text.size();
  const char* done = text.data();  // the text before it is in `changed`
  std::string changed;
  for (const char* p = text.data(); p < end;) {
    // A segment ends before a character that nothing before it can change or join. Most segments
    // are one character, and below U+0300 such a character is normal.
    const char* const segment = p;
    if (is_below_marks(*p)) {
      p += utf8_len(*p);
      if (p == end || is_below_marks(*p)) continue;
      p = segment;
    }
    bool is_normal = true;
    int last_class = 0;
    do {
      const char32_t c = next_code_point(p);
      const int this_class =
          table[c] & kMark ? combining_class(static_cast<utf8proc_int32_t>(c)) : 0;
      const bool in_order = this_class == 0 || this_class >= last_class;
      is_normal = is_normal && in_order && !(table[c] & kUnstable);
      last_class = this_class;
    } while (p < end && (table[code_point_at(p)] & (kMark | kUnstable)));
    if (is_normal) continue;
    changed.append(done, segment);
    append_nfc(changed, {segment, static_cast<size_t>(p - segment)});
    done = p;
  }
  if (done == text.data()) return text;
  changed.append(done, end);
  storage = std::move(changed);
  return storage;
}

std::string normal_form(std::string_view text, NormalForm form) {
  const CharTable& table = CharTable::get();
  const int options =
      UTF8PROC_DECOMPOSE | (form == NormalForm::kNfd ? 0 : static_cast<int>(UTF8PROC_COMPAT));
  std::string out;
  Chars segment, parts;
  const auto finish_segment = [&] {
    if (segment.empty()) return;
    order_marks(segment, older_combining_class);
    if (form == NormalForm::kNfkc) compose(segment);
    append_chars(out, segment);
    segment.clear();
  };
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char32_t c = next_code_point(p);
    if (c < 0x80 && (p == end || !(*p & 0x80))) {
      finish_segment();
      out += static_cast<char>(c);
      continue;
    }
    parts.clear();
    if (is_newer_composite(c)) parts.push_back(static_cast<utf8proc_int32_t>(c));
    else decompose(c, parts, options);
    // A segment ends before a character that nothing before it can change or join.
    if (!(table[static_cast<char32_t>(parts[0])] & (kMark | kUnstable))) finish_segment();
    segment.insert(segment.end(), parts.begin(), parts.end());
  }
  finish_segment();
  return out;
}

std::string to_utf8(char32_t c) {
  utf8proc_uint8_t bytes[4];
  const auto len = utf8proc_encode_char(static_cast<utf8proc_int32_t>(c), bytes);
  return {reinterpret_cast<const char*>(bytes), static_cast<size_t>(len)};
}

bool is_word_char(char32_t c) {
  if (CharTable::get()[c] & kLetter) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  if (category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_NL) return true;
  // Word characters that are no letters: connector punctuation, join controls, and the symbols that
  // are Alphabetic, which are circled and squared Latin letters.
  return category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D ||
         (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace nanovllm
