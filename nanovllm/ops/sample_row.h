#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "nanovllm/base/config.h"

namespace nanovllm {

/// The numbers that determine how a row is drawn, in the form in which the kernels of every backend
/// read them. They are made once from SamplingParams and are passed on unchanged: SlotSetup,
/// SampleRow and the GPU's RowParams have them as their base class.
struct SamplingScalars {
  float temperature = 1;  ///< below 1e-5: greedy
  float top_p = 1;
  float min_p = 0;
  int32_t top_k = 0;  ///< 0: off
  uint64_t seed = 0;
  uint32_t position = 0;  ///< index of the drawn token in the whole sequence
  uint32_t choice = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;

  static SamplingScalars of(const SamplingParams& params, uint64_t seed, int32_t choice) {
    return {.temperature = static_cast<float>(params.temperature),
            // A positive value that becomes 0 as a float would allow no token at all.
            .top_p = std::max(static_cast<float>(params.top_p), std::numeric_limits<float>::min()),
            .min_p = static_cast<float>(params.min_p),
            .top_k = static_cast<int32_t>(std::max<int64_t>(params.top_k, 0)),
            .seed = seed,
            .choice = static_cast<uint32_t>(choice),
            .presence_penalty = static_cast<float>(params.presence_penalty),
            .frequency_penalty = static_cast<float>(params.frequency_penalty),
            .repetition_penalty = static_cast<float>(params.repetition_penalty)};
  }
  bool has_penalties() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
  bool has_filters() const { return top_p < 1 || min_p > 0 || top_k > 0; }
};
static_assert(std::is_trivially_copyable_v<SamplingScalars>);

/// A placeholder for a token that the host does not know yet: the one that the slot drew last.
inline constexpr int32_t kTokenInFlight = -1;
inline constexpr int32_t kNoToken = -2;

struct TokenBias {
  int32_t id = 0;
  float bias = 0;
};
/// A token of a sequence, and how often it occurs in the answer (0: it occurs only in the prompt).
struct TokenCount {
  int32_t id = 0;
  int32_t in_answer = 0;
};

/// `id` cannot be drawn after the token `after`.
struct MaskedAfter {
  int32_t after = 0, id = 0;
};

/// How one row is drawn. Every backend draws the same token from the same logits, because each
/// computes exactly the following, and rounds every float32 multiplication and addition:
///
/// - The logit l of a token in `counts` becomes (l > 0 ? l / repetition_penalty : l *
///   repetition_penalty) - frequency_penalty * in_answer - (presence_penalty if in_answer > 0).
///   Then its bias is added, and masked tokens and those that are not allowed become -infinity. Ids
///   outside the vocabulary have no effect. `last_token` occurs once more in the answer than
///   `counts` says, and the `id` of each MaskedAfter with this token is masked.
/// - value = logit * (1 / temperature). Tokens are ordered by value, then by lower id.
/// - min_p keeps values >= best value + log(min_p), computed in double and rounded to float32.
/// - top_k keeps the first top_k of those.
/// - top_p keeps the shortest prefix of those whose weight reaches ceil(top_p * weight of all), at
///   least one token. A token's weight is the integer nearest to 2^40 e^(value - best value), the
///   power in float32, so sums are exact in any order.
/// - The token with the largest value + noise is drawn; of equal ones, the one with the lower id.
///   noise = -log(-log1p(-u)), computed in double and rounded to float32; u = (x + 0.5) / 2^32 with
///   x from Philox4x32-10: key = seed, counter = (token id / 4, position, choice, 0), output word
///   token id % 4. Source: the Gumbel-max trick, Maddison, Tarlow and Minka, "A* Sampling", 2014.
/// - If the best value is infinite (because the temperature is tiny), the row is greedy.
///
/// A row whose finite logits are all masked gets kNotFinite.
struct SampleRow : SamplingScalars {
  // An id occurs at most once in `counts`, and at most once in `biases`.
  std::span<const TokenCount> counts = {};
  std::span<const TokenBias> biases = {};
  std::span<const int32_t> masked_ids = {};   ///< cannot be drawn
  std::span<const int32_t> allowed_ids = {};  ///< nothing else can be drawn; empty: all
  /// [(vocab_size + 31) / 32] The same as bits: bit id % 32 of word id / 32. Empty: all.
  std::span<const int32_t> allowed_mask = {};
  /// The token before the drawn one, if the lists do not take it into account yet, because another
  /// step draws it at this moment. kTokenInFlight: only the backend knows it. kNoToken: there is
  /// none.
  int32_t last_token = kNoToken;
  std::span<const MaskedAfter> masked_after = {};
  /// If allowed_mask is written only after the forward pass was begun: its words; else 0.
  int32_t num_late_words = 0;
  int32_t num_logprobs = 0;  ///< wanted: of the drawn token and of the best num_logprobs - 1

  bool has_lists() const {
    return last_token != kNoToken ||
           !(counts.empty() && biases.empty() && masked_ids.empty() && allowed_ids.empty() &&
             allowed_mask.empty() && num_late_words == 0);
  }
};

/// Whether bit `id` is set in a mask of tokens.
inline bool has_bit(std::span<const int32_t> mask, int32_t id) {
  return ((static_cast<uint32_t>(mask[static_cast<size_t>(id / 32)]) >> (id % 32)) & 1) != 0;
}

/// kNoMemory: the slot's lists did not fit in memory when its sequence started.
enum class RowStatus : int32_t { kOk = 0, kNotFinite = 1, kNoMemory = 2 };

}  // namespace nanovllm
