#include "apps/cli/arguments.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace nanovllm {

namespace {

constexpr auto kShortNames = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"-tp", "--tensor-parallel-size"},
     {"-pp", "--pipeline-parallel-size"},
     {"-dp", "--data-parallel-size"}});

std::string with_long_name(const std::string& word) {
  const std::string_view name = std::string_view(word).substr(0, word.find('='));
  for (const auto& [short_name, long_name] : kShortNames)
    if (name == short_name) return std::string(long_name) + word.substr(name.size());
  return word;
}

/// Whether the word after the option is its value, whatever it looks like.
bool needs_value(const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  return option != nullptr && option->get_items_expected_min() > 0;
}

}  // namespace

std::vector<std::string> words_for_parser(const CLI::App& command,
                                          std::span<const std::string> words, bool as_vllm) {
  std::vector<std::string> out, models;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") {  // only positional arguments follow
      out.insert(out.end(), words.begin() + static_cast<ptrdiff_t>(i), words.end());
      break;
    }
    if (!words[i].starts_with('-')) {
      out.push_back(words[i]);
      continue;
    }
    std::string word = with_long_name(words[i]);
    const bool is_long = word.starts_with("--");
    const size_t end = is_long ? std::min(word.find('='), word.size()) : word.size();
    if (as_vllm && is_long)
      std::replace(word.begin(), word.begin() + static_cast<ptrdiff_t>(end), '_', '-');
    const std::string name = word.substr(0, end);
    const bool has_value = end < word.size();
    const bool is_model = as_vllm && name == "--model";
    const bool is_last = i + 1 == words.size();
    if (!(is_model || needs_value(command, name)) || (!has_value && is_last)) {
      out.push_back(word);
      continue;
    }
    const std::string value = has_value ? word.substr(end + 1) : words[++i];
    if (!is_model) out.push_back(name);
    (is_model ? models : out).push_back(value);
  }
  // MODEL goes to the front, behind the command, where no list of values can take it.
  if (!models.empty()) out.insert(out.begin() + 1, models.begin(), models.end());
  return out;
}

}  // namespace nanovllm
