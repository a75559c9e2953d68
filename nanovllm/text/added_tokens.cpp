#include "nanovllm/text/added_tokens.h"

#include <algorithm>

#include "nanovllm/text/unicode.h"
#include "nanovllm/text/utf8.h"

namespace nanovllm {

namespace {

// The start of the last character of `text`, which is not empty.
size_t last_char(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (text[at] & 0xC0) == 0x80) --at;
  return at;
}

char32_t char_at(std::string_view text, size_t at) {
  const char* p = text.data() + at;
  return next_code_point(p);
}

bool is_space_at(std::string_view text, size_t at) {
  return (CharTable::get()[char_at(text, at)] & kSpace) != 0;
}

bool ends_in_word(std::string_view text) {
  return !text.empty() && is_word_char(char_at(text, last_char(text)));
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_word_char(char_at(text, 0));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {
  std::erase_if(patterns_, [](const Pattern& p) { return p.text.empty(); });
  std::stable_sort(patterns_.begin(), patterns_.end(),
                   [](const Pattern& a, const Pattern& b) { return a.text < b.text; });
  // Of tokens that are the same once normalized, the first counts.
  const auto same = [](const Pattern& a, const Pattern& b) { return a.text == b.text; };
  patterns_.erase(std::unique(patterns_.begin(), patterns_.end(), same), patterns_.end());
  for (const Pattern& p : patterns_) is_first_[static_cast<unsigned char>(p.text[0])] = true;
}

const AddedTokenFinder::Pattern* AddedTokenFinder::longest_at(std::string_view text) const {
  const Pattern* longest = nullptr;
  auto low = patterns_.begin(), high = patterns_.end();
  // Narrows down to the patterns that begin with text[0, len); the shortest of them comes first.
  for (size_t len = 1; len <= text.size(); ++len) {
    const char c = text[len - 1];
    const auto before = [len](const Pattern& p, char byte) {
      return p.text.size() < len ||
             static_cast<unsigned char>(p.text[len - 1]) < static_cast<unsigned char>(byte);
    };
    const auto behind = [len](char byte, const Pattern& p) {
      return p.text.size() >= len &&
             static_cast<unsigned char>(byte) < static_cast<unsigned char>(p.text[len - 1]);
    };
    low = std::lower_bound(low, high, c, before);
    high = std::upper_bound(low, high, c, behind);
    if (low == high) break;
    if (low->text.size() == len) longest = &*low;
  }
  return longest;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const Pattern* found =
        is_first_[static_cast<unsigned char>(text[at])] ? longest_at(text.substr(at)) : nullptr;
    if (found == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + found->text.size();
    at = end;
    if (found->token.single_word &&
        (ends_in_word(text.substr(0, begin)) || begins_with_word(text.substr(end))))
      continue;
    if (found->token.lstrip)
      for (size_t c; begin > done && is_space_at(text, c = last_char(text.substr(0, begin)));)
        begin = c;
    if (found->token.rstrip)
      while (end < text.size() && is_space_at(text, end))
        end += static_cast<size_t>(utf8_len(text[end]));
    if (done < begin) parts.push_back({-1, text.substr(done, begin - done)});
    parts.push_back({found->token.id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
  return parts;
}

}  // namespace nanovllm
