#include "nanovllm/base/strings/suggestion.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace nanovllm {

namespace {

// The name in lower case, with underscores for dashes, without the dashes that begin an option.
std::string plain(std::string_view name) {
  std::string text(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  for (char& c : text)
    if (c == '-') c = '_';
    else if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, row(b.size() + 1), next(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] =
          std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], before[j - 2] + 1);
    }
    before = row;
    std::swap(row, next);
  }
  return row[b.size()];
}

std::string_view nearest_name(std::string_view given, std::span<const std::string> known) {
  constexpr size_t kMaxLen = 64, kShortLen = 3, kLeastPrefix = 3;
  const std::string wanted = plain(given);
  std::string_view best;
  if (wanted.empty() || wanted.size() > kMaxLen) return best;
  // A third of the characters may be wrong. A name that only continues counts as one mistake.
  size_t least = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& name : known) {
    const std::string candidate = plain(name);
    // A short name has to begin with the right letter: 'gpu' does not mean 'cpu'.
    if (wanted.size() <= kShortLen && !candidate.starts_with(wanted[0])) continue;
    const bool continues = wanted.size() >= kLeastPrefix && candidate.size() > wanted.size() &&
                           candidate.starts_with(wanted);
    const size_t wrong = continues ? 1 : edit_distance(wanted, candidate);
    if (wrong >= least || wrong >= candidate.size()) continue;
    least = wrong;
    best = name;
  }
  return best;
}

std::string did_you_mean(std::string_view given, std::span<const std::string> known) {
  const std::string_view name = nearest_name(given, known);
  return name.empty() ? "" : fmt::format("; did you mean '{}'?", name);
}

}  // namespace nanovllm
