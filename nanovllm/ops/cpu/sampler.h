#pragma once

#include <cstdint>
#include <span>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/isa.h"

namespace nanovllm::cpu {

void sample(Tensor logits, std::span<const SampleRow> rows, std::span<int32_t> token_ids,
            std::span<RowStatus> status, Isa isa);

void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                    std::span<int32_t> ids, std::span<float> logprobs,
                    std::span<int32_t> target_ranks, Isa isa);

}  // namespace nanovllm::cpu
