#include "nanovllm/text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace nanovllm {

StopPatterns::StopPatterns(std::vector<std::string> texts) {
  patterns_.reserve(texts.size());
  for (std::string& stop : texts) {
    auto& [text, fallback] = patterns_.emplace_back(std::move(stop));
    fallback.resize(text.size() + 1);
    for (size_t i = 1, n = 0; i < text.size(); ++i) {
      while (n > 0 && text[i] != text[n]) n = fallback[n];
      if (text[i] == text[n]) ++n;
      fallback[i + 1] = static_cast<uint32_t>(n);
    }
  }
}

size_t StopPatterns::num_bytes() const {
  size_t bytes = 0;
  for (const auto& [text, fallback] : patterns_)
    bytes += sizeof(Pattern) + text.size() + fallback.size() * sizeof fallback[0];
  return bytes;
}

uint32_t StopPatterns::Pattern::advance(uint32_t length, char c) const {
  if (length == text.size()) length = fallback[length];  // a match that was ignored
  while (length > 0 && text[length] != c) length = fallback[length];
  return text[length] == c ? length + 1 : length;
}

StopStrings::StopStrings(const StopPatterns& stop)
    : patterns_(stop.patterns_), lengths_(patterns_.size()) {}

std::string StopStrings::push(std::string_view piece, bool ignore) {
  for (const char c : piece) {
    held_ += c;
    const std::string* found = nullptr;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      const std::string& text = patterns_[i].text;
      lengths_[i] = patterns_[i].advance(lengths_[i], c);
      if (lengths_[i] == text.size() && (found == nullptr || text.size() > found->size()))
        found = &text;
    }
    if (found == nullptr || ignore) continue;
    matched_ = found;
    held_.resize(held_.size() - found->size());
    return std::exchange(held_, {});
  }
  size_t keep = 0;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    const auto& [text, fallback] = patterns_[i];
    keep = std::max<size_t>(keep, lengths_[i] == text.size() ? fallback.back() : lengths_[i]);
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace nanovllm
