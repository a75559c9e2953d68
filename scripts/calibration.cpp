// What compile_times.py measures other sources with: its compilation takes about two seconds, and
// uses what most sources use (containers, texts, algorithms, a function object), but no header of
// this project.
#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

template <int N>
std::vector<std::string> words_of(const std::map<std::string, int>& counts) {
  std::vector<std::string> words;
  for (const auto& [word, count] : counts)
    if (count > N) words.push_back(word + std::to_string(count * N));
  std::sort(words.begin(), words.end(),
            [](const auto& a, const auto& b) { return a.size() + N < b.size(); });
  return words;
}

template <int... N>
std::vector<std::function<std::vector<std::string>(const std::map<std::string, int>&)>> all(
    std::integer_sequence<int, N...>) {
  return {words_of<N>...};
}

}  // namespace

std::unordered_map<std::string, std::optional<size_t>> sizes(
    const std::map<std::string, int>& counts) {
  std::unordered_map<std::string, std::optional<size_t>> sizes;
  for (const auto& function : all(std::make_integer_sequence<int, 2>()))
    for (const std::string& word : function(counts)) sizes[word] = word.size();
  return sizes;
}
