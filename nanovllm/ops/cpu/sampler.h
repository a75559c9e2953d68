#pragma once

#include <cstdint>
#include <span>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/isa.h"

namespace nanovllm::cpu {

/// Draws one token a row (Backend::sample), the same on every instruction set. Exactly, with
/// float32 products and sums rounded one by one:
///
/// - Penalties and biases, product by product and sum by sum in the order of SampleRow, then masks.
/// - value = logit * (1 / temperature). Tokens are ordered by value, then by lower id.
/// - min_p keeps values >= best value + log(min_p), computed in double and rounded to float32.
/// - top_k keeps the first top_k of those.
/// - top_p keeps the shortest beginning of those whose weight reaches ceil(top_p * total weight),
/// at least one. A token's
///   weight is the integer nearest to 2^40 e^(value - best value), the power in float32: so sums
///   are exact in any order.
/// - The token with the largest value + noise is drawn, the lower id of equal ones. noise =
/// -log(-log1p(-u)), computed in
///   double and rounded to float32; u = (x + 0.5) / 2^32 with x from Philox. Source: the Gumbel-max
///   trick, Maddison, Tarlow and Minka, "A* Sampling", 2014.
/// - Where the best value is infinite (a tiny temperature), the row is greedy.
///
/// A row whose every finite logit is masked gets kNotFinite. Ids outside the vocabulary have no
/// effect. Rows are spread over the threads.
void sample(Tensor logits, std::span<const SampleRow> rows, std::span<int32_t> token_ids,
            std::span<RowStatus> status, Isa isa);

/// Backend::token_logprobs. k is at most the vocabulary. A row without a distribution (NaN,
/// +infinity, nothing but -infinity) gets NaN everywhere, ids 0 to k - 1 and rank 1.
void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                    std::span<int32_t> ids, std::span<float> logprobs,
                    std::span<int32_t> target_ranks, Isa isa);

}  // namespace nanovllm::cpu
