#include "nanovllm/text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace nanovllm {

StopStrings::Matcher::Matcher(const std::string& stop) : text(stop), fallback(stop.size() + 1) {
  for (size_t i = 1, n = 0; i < text.size(); ++i) {
    while (n > 0 && text[i] != text[n]) n = fallback[n];
    if (text[i] == text[n]) ++n;
    fallback[i + 1] = static_cast<uint32_t>(n);
  }
}

bool StopStrings::Matcher::advance(char c) {
  if (length == text.size()) length = fallback[length];  // a match that was ignored
  while (length > 0 && text[length] != c) length = fallback[length];
  if (text[length] == c) ++length;
  return length == text.size();
}

StopStrings::StopStrings(const std::vector<std::string>& stop)
    : matchers_(stop.begin(), stop.end()) {}

std::string StopStrings::push(std::string_view piece, bool ignore) {
  for (const char c : piece) {
    held_ += c;
    const std::string* found = nullptr;
    for (Matcher& m : matchers_)
      if (m.advance(c) && (found == nullptr || m.text.size() > found->size())) found = &m.text;
    if (found == nullptr || ignore) continue;
    matched_ = *found;
    held_.resize(held_.size() - found->size());
    return std::exchange(held_, {});
  }
  size_t keep = 0;
  for (const Matcher& m : matchers_)
    keep = std::max<size_t>(keep, m.length == m.text.size() ? m.fallback[m.length] : m.length);
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::finish() { return std::exchange(held_, {}); }

}  // namespace nanovllm
