#pragma once

#include <cstdint>
#include <span>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/machine/isa.h"

namespace nanovllm::cpu {

/// Backend::sample: draws one token for each row by the rule of ops/sample_row.h, the same one on
/// every instruction set. No row's last_token is in flight. Rows are spread over the threads.
void sample(Tensor logits, std::span<const SampleRow> rows, std::span<int32_t> token_ids,
            std::span<RowStatus> status, Isa isa);

/// Backend::token_logprobs: `entries` is [R, k + 1], k at most the vocabulary. A row without a
/// distribution (NaN, +infinity, nothing but -infinity) gets NaN everywhere, ids 0 to k - 1 and
/// rank 1. `processed` is empty for the raw logits; else it has the parameters of each row.
void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                    std::span<Logprob> entries, std::span<const SampleRow> processed, Isa isa);

}  // namespace nanovllm::cpu
