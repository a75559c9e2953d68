#include "nanovllm/ops/cuda/tuning/gemm_choices.h"

#include <algorithm>
#include <sstream>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/tuning/shape_bucket.h"

namespace nanovllm::cuda {

GemmChoices::Key GemmChoices::key(int operation, Tensor out, Tensor x, Tensor w) {
  return {operation,  largest_in_bucket(x.shape[0]), w.shape[0],
          w.shape[1], static_cast<int>(x.dtype),     static_cast<int>(out.dtype)};
}

const GemmChoices::Known* GemmChoices::find(const Key& key) const {
  const auto at = all_.find(key);
  return at != all_.end() ? &at->second : nullptr;
}

std::string GemmChoices::to_text() const {
  std::ostringstream text;
  for (const auto& [key, known] : all_) {
    if (known.num_tokens == 0) continue;
    std::apply([&](auto... parts) { ((text << parts << ' '), ...); }, key);
    text << known.num_tokens << ' ' << known.choice.kernel << ' ' << known.choice.in_pieces;
    for (const uint64_t word : known.choice.algorithm) text << ' ' << word;
    text << '\n';
  }
  return text.str();
}

void GemmChoices::add_text(const std::string& text) {
  std::map<Key, Known> added;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Key key;
    Known known;
    std::apply([&](auto&... parts) { (words >> ... >> parts); }, key);
    words >> known.num_tokens >> known.choice.kernel >> known.choice.in_pieces;
    for (uint64_t& word : known.choice.algorithm) words >> word;
    require(words && words.peek() == std::char_traits<char>::eof() && known.num_tokens > 0 &&
                known.choice.kernel >= GemmChoice::kDequantized,
            "not a choice: {}", line);
    added[key] = known;
  }
  for (const auto& [key, known] : added)
    if (Known& here = all_[key]; here.num_tokens < known.num_tokens) here = known;
}

void GemmChoices::forget_measured() {
  std::erase_if(all_, [](const auto& c) { return c.second.num_tokens > 0; });
}

int64_t GemmChoices::num_measured() const {
  return std::ranges::count_if(all_, [](const auto& c) { return c.second.num_tokens > 0; });
}

}  // namespace nanovllm::cuda
