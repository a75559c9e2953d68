#include "nanovllm/text/grammar/language/code_points.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"

namespace nanovllm::grammar {

namespace {

constexpr char32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF, kLastCodePoint = 0x10FFFF;

using CodePointRanges = std::vector<std::pair<char32_t, char32_t>>;

// The code points whose encodings have the same length.
struct Utf8Length {
  char32_t first, last;
  int num_tails;  // continuation bytes
  unsigned lead;  // the first byte of an encoding whose other bits are all zero
};
constexpr Utf8Length kUtf8Lengths[] = {{0, 0x7F, 0, 0x00},
                                       {0x80, 0x7FF, 1, 0xC0},
                                       {0x800, 0xFFFF, 2, 0xE0},
                                       {0x10000, kLastCodePoint, 3, 0xF0}};

// The encodings of these values: a byte, which is `lead` plus the value's bits above the last
// 6 * num_tails, and `num_tails` continuation bytes with 6 bits each. First bytes that are followed
// by the same continuations are one set, so that the result is a small tree.
Expr encoded(Expressions& e, const CodePointRanges& values, int num_tails, unsigned lead) {
  constexpr unsigned kTail = 0x80;
  const int shift = 6 * num_tails;
  const char32_t mask = (char32_t{1} << shift) - 1;
  if (num_tails == 0) {
    Bytes set;
    for (const auto& [first, last] : values)
      for (char32_t value = first; value <= last; ++value) set.set(lead + value);
    return e.bytes(set);
  }
  const Expr any_tail = e.byte_range(kTail, kTail + 63);
  if (lead == kTail && values.front() == std::pair<char32_t, char32_t>(0, 64 * mask + 63))
    return e.repeat(any_tail, num_tails + 1, num_tails + 1);

  std::map<unsigned, CodePointRanges> rests;  // by the first byte
  for (const auto& [first, last] : values)
    for (char32_t block = first >> shift; block <= last >> shift; ++block)
      rests[lead + block].emplace_back(block == first >> shift ? first & mask : 0,
                                       block == last >> shift ? last & mask : mask);
  std::map<Expr, Bytes> leads;  // by what follows
  for (const auto& [byte, rest] : rests) leads[encoded(e, rest, num_tails - 1, kTail)].set(byte);
  std::vector<Expr> alternatives;
  for (const auto& [rest, set] : leads) alternatives.push_back(e.sequence(e.bytes(set), rest));
  return e.any_of(alternatives);
}

Expr in_utf8(Expressions& e, const CodePoints& set) {
  std::vector<Expr> alternatives;
  for (const Utf8Length& length : kUtf8Lengths) {
    CodePointRanges values;
    for (const auto& [first, last] : set.ranges())
      if (first <= length.last && last >= length.first)
        values.emplace_back(std::max(first, length.first), std::min(last, length.last));
    if (!values.empty()) alternatives.push_back(encoded(e, values, length.num_tails, length.lead));
  }
  return e.any_of(alternatives);
}

// What a JSON string has to escape.
const CodePoints& json_escaped() {
  static const CodePoints set = [] {
    CodePoints out(0, 0x1F);
    out.add('"', '"');
    out.add('\\', '\\');
    return out;
  }();
  return set;
}

// The escapes of the set's members that have one.
Expr json_escapes(Expressions& e, const CodePoints& set) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  Bytes letters;
  std::array<Bytes, 2> digits;  // the last digits after \u000 and \u001
  for (const auto& [first, last] : json_escaped().ranges())
    for (char32_t c = first; c <= last; ++c) {
      if (!set.contains(c)) continue;
      const size_t at = kEscaped.find(static_cast<char>(c));
      if (at != std::string_view::npos) {
        letters.set(static_cast<unsigned char>(kLetters[at]));
        continue;
      }
      for (const char* const hex : {"0123456789abcdef", "0123456789ABCDEF"})
        digits[c >> 4].set(static_cast<unsigned char>(hex[c & 15]));
    }
  const Expr coded = e.any_of(
      {e.sequence(e.text("0"), e.bytes(digits[0])), e.sequence(e.text("1"), e.bytes(digits[1]))});
  return e.sequence(e.text("\\"), e.any_of({e.bytes(letters), e.sequence(e.text("u00"), coded)}));
}

}  // namespace

void CodePoints::add(char32_t first, char32_t last) {
  check(first <= last && last <= kLastCodePoint, "range U+{:X} to U+{:X}",
        static_cast<uint32_t>(first), static_cast<uint32_t>(last));
  if (first <= kLastSurrogate && last >= kFirstSurrogate) {
    if (first < kFirstSurrogate) add(first, kFirstSurrogate - 1);
    if (last > kLastSurrogate) add(kLastSurrogate + 1, last);
    return;
  }
  if (ranges_.empty() || ranges_.back().second + 1 < first) {
    ranges_.emplace_back(first, last);
    return;
  }
  // The ranges that overlap or touch the new one are joined with it.
  const auto begin = std::ranges::partition_point(
      ranges_, [&](const auto& range) { return range.second + 1 < first; });
  const auto end =
      std::find_if(begin, ranges_.end(), [&](const auto& range) { return range.first > last + 1; });
  if (begin == end) {
    ranges_.insert(begin, {first, last});
    return;
  }
  *begin = {std::min(first, begin->first), std::max(last, std::prev(end)->second)};
  ranges_.erase(std::next(begin), end);
}

void CodePoints::add(const CodePoints& other) {
  CodePointRanges all;
  std::ranges::merge(ranges_, other.ranges_, std::back_inserter(all));
  ranges_.clear();
  for (const auto& [first, last] : all) add(first, last);
}

CodePoints CodePoints::complement() const {
  CodePoints out;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (next < first) out.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLastCodePoint) out.add(next, kLastCodePoint);
  return out;
}

bool CodePoints::contains(char32_t c) const {
  const auto range =
      std::ranges::partition_point(ranges_, [&](const auto& r) { return r.second < c; });
  return range != ranges_.end() && range->first <= c;
}

Expr character(Expressions& e, const CodePoints& set, Coding coding) {
  if (coding == Coding::kUtf8) return in_utf8(e, set);
  CodePoints not_plain = set.complement();
  not_plain.add(json_escaped());
  return e.any_of({in_utf8(e, not_plain.complement()), json_escapes(e, set)});
}

Expr written(Expressions& e, std::string_view text, Coding coding) {
  if (coding == Coding::kUtf8) return e.text(text);
  std::vector<Expr> parts;
  const char* plain = text.data();  // what comes before it is in `parts`
  const char* const end = plain + text.size();
  for (const char* p = plain; p < end; ++p) {
    const auto c = static_cast<unsigned char>(*p);
    if (!json_escaped().contains(c)) continue;
    parts.push_back(e.text({plain, p}));
    parts.push_back(json_escapes(e, {c, c}));
    plain = p + 1;
  }
  Expr out = e.text({plain, end});
  for (size_t i = parts.size(); i-- > 0;) out = e.sequence(parts[i], out);
  return out;
}

}  // namespace nanovllm::grammar
