#pragma once

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/machine/isa.h"

namespace nanovllm::cpu {

/// The backend's operations on the entries of a mixture of experts, except the GEMM (gemm.h);
/// backend.h is their contract. Large ones are split over the threads of parallel_for().
void route(const Routing& routing, bool normalize);
void combine_experts(Tensor out, Tensor x, const Routing& routing, Isa isa);

}  // namespace nanovllm::cpu
