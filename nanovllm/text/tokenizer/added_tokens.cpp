#include "nanovllm/text/tokenizer/added_tokens.h"

#include <algorithm>
#include <deque>

#include "nanovllm/base/check.h"
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

unsigned char byte_of(char c) { return static_cast<unsigned char>(c); }

bool ends_in_word(std::string_view text) {
  return !text.empty() && is_word_char(char_at(text, last_char(text)));
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_word_char(char_at(text, 0));
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<Pattern> patterns) : patterns_(std::move(patterns)) {
  size_t num_bytes = 0;
  for (const Pattern& p : patterns_) num_bytes += p.text.size();
  require(num_bytes <= kMaxBytes, "added_tokens: {} bytes of texts to look for; at most {} can be",
          num_bytes, kMaxBytes);
  std::erase_if(patterns_, [](const Pattern& p) { return p.text.empty(); });
  std::ranges::stable_sort(patterns_, [](const Pattern& a, const Pattern& b) {
    return std::lexicographical_compare(a.text.rbegin(), a.text.rend(), b.text.rbegin(),
                                        b.text.rend(),
                                        [](char x, char y) { return byte_of(x) < byte_of(y); });
  });
  // Of tokens that are the same once normalized, the first counts.
  const auto same = [](const Pattern& a, const Pattern& b) { return a.text == b.text; };
  patterns_.erase(std::unique(patterns_.begin(), patterns_.end(), same), patterns_.end());
  for (const Pattern& p : patterns_) is_last_[byte_of(p.text.back())] = true;
  add_nodes(num_bytes);
}

// A node stands for the patterns [begin, end), which end with the same `depth` bytes; the pattern
// that is these bytes comes first.
void AddedTokenFinder::add_nodes(size_t num_bytes) {
  struct Range {
    size_t begin, end, depth;
  };
  std::deque<Range> ranges{{0, patterns_.size(), 0}};  // of the nodes that have no children yet
  nodes_.reserve(std::min(num_bytes, kMaxBytes) + 2);
  nodes_.push_back({});
  for (uint32_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges.front();
    ranges.pop_front();
    if (begin < end && patterns_[begin].text.size() == depth)
      nodes_[node].longest = static_cast<int32_t>(begin++);
    else nodes_[node].longest = nodes_[nodes_[node].fail].longest;
    nodes_[node].first_child = static_cast<uint32_t>(nodes_.size());
    const auto byte_at = [&, depth = depth](size_t i) {
      const std::string& text = patterns_[i].text;
      return text[text.size() - 1 - depth];
    };
    for (size_t from = begin; from < end;) {
      size_t to = from;
      while (to < end && byte_at(to) == byte_at(from)) ++to;
      ranges.push_back({from, to, depth + 1});
      // A node's suffix is less deep: it has its children already.
      nodes_.push_back({.fail = node == 0 ? 0 : next(nodes_[node].fail, byte_at(from)),
                        .byte = byte_of(byte_at(from))});
      from = to;
    }
  }
  nodes_.push_back({.first_child = static_cast<uint32_t>(nodes_.size())});
}

uint32_t AddedTokenFinder::child(uint32_t node, char byte) const {
  const Node* const begin = nodes_.data() + nodes_[node].first_child;
  const Node* const end = nodes_.data() + nodes_[node + 1].first_child;
  const Node* const found = std::lower_bound(
      begin, end, byte_of(byte), [](const Node& n, unsigned char b) { return n.byte < b; });
  return found < end && found->byte == byte_of(byte) ? static_cast<uint32_t>(found - nodes_.data())
                                                     : 0;
}

uint32_t AddedTokenFinder::next(uint32_t node, char byte) const {
  for (;; node = nodes_[node].fail)
    if (const uint32_t found = child(node, byte); found != 0 || node == 0) return found;
}

std::vector<AddedTokenFinder::Start> AddedTokenFinder::starts(std::string_view text) const {
  std::vector<Start> starts;
  uint32_t node = 0;
  for (size_t at = text.size(); at-- > 0;) {
    if (node == 0 && !is_last_[byte_of(text[at])]) continue;
    node = next(node, text[at]);
    if (const int32_t pattern = nodes_[node].longest; pattern >= 0)
      starts.push_back({static_cast<uint32_t>(at), pattern});
  }
  return starts;
}

std::vector<AddedTokenFinder::Part> AddedTokenFinder::split(std::string_view text) const {
  std::vector<Part> parts;
  size_t done = 0, next = 0;
  size_t spaces_end = 0;  // of the white space that a token took along last
  const std::vector<Start> starts = this->starts(text);
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    if (start->at < next) continue;
    const auto& [spelling, token] = patterns_[static_cast<size_t>(start->pattern)];
    size_t begin = start->at;
    size_t end = next = begin + spelling.size();
    if (token.single_word &&
        (ends_in_word(text.substr(0, begin)) || begins_with_word(text.substr(end))))
      continue;
    if (token.lstrip)
      for (size_t c; begin > done && is_space_at(text, c = last_char(text.substr(0, begin)));)
        begin = c;
    if (token.rstrip) {
      // Tokens may lie in that space and take the rest of it along, too.
      if (end < spaces_end) end = spaces_end;
      while (end < text.size() && is_space_at(text, end))
        end += static_cast<size_t>(utf8_len(text[end]));
      spaces_end = end;
    }
    if (done < begin) parts.push_back({-1, text.substr(done, begin - done)});
    parts.push_back({token.id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
  return parts;
}

}  // namespace nanovllm
