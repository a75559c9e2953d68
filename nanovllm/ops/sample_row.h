#pragma once

#include <cstdint>
#include <span>

namespace nanovllm {

struct TokenBias {
  int32_t id = 0;
  float bias = 0;
};
/// A token of a sequence, and how often it stands in the answer (0: in the prompt alone).
struct TokenCount {
  int32_t id = 0;
  int32_t in_answer = 0;
};

/// How one row is drawn. Order: penalties, biases, masks, temperature, min_p, top_k, top_p, then
/// Gumbel-max with noise from Philox4x32-10: key = seed, counter = (token id / 4, position, choice,
/// 0), output word token id % 4.
struct SampleRow {
  float temperature = 1;  ///< below 1e-5: greedy
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;  ///< 0: off
  uint64_t seed = 0;
  uint32_t position = 0;  ///< index of the drawn token in the whole sequence
  uint32_t choice = 0;
  // The logit l of a token in `counts` becomes (l > 0 ? l / repetition : l * repetition) -
  // frequency * in_answer - (presence if in_answer > 0); then its bias is added. Each id stands
  // once in a list.
  std::span<const TokenCount> counts = {};
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  std::span<const TokenBias> biases = {};
  std::span<const int32_t> masked_ids = {};   ///< cannot be drawn
  std::span<const int32_t> allowed_ids = {};  ///< nothing else can be drawn; empty: all

  bool has_lists() const {
    return !(counts.empty() && biases.empty() && masked_ids.empty() && allowed_ids.empty());
  }
  bool has_filters() const { return top_p < 1 || min_p > 0 || top_k > 0; }
};

enum class RowStatus : int32_t { kOk = 0, kNotFinite = 1 };

}  // namespace nanovllm
