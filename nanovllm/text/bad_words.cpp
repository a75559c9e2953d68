#include "nanovllm/text/bad_words.h"

#include <algorithm>

namespace nanovllm {

std::vector<int32_t> encode_bad_words(std::span<const std::string> words,
                                      const Tokenizer& tokenizer) {
  std::vector<int32_t> list;
  const auto add = [&](const std::vector<int32_t>& ids) {
    list.push_back(static_cast<int32_t>(ids.size()));
    list.insert(list.end(), ids.begin(), ids.end());
  };
  for (const std::string& word : words) {
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size() - 1));
    const std::vector<int32_t> ids = tokenizer.encode(bare, /*add_special_tokens=*/false);
    if (ids.empty()) continue;
    add(ids);
    const std::vector<int32_t> spaced = tokenizer.encode(" " + bare, false);
    if (spaced.size() == ids.size() && spaced[0] != ids[0]) add(spaced);
  }
  return list;
}

}  // namespace nanovllm
