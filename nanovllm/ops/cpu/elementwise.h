#pragma once

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/gemm/gemm.h"
#include "nanovllm/ops/cpu/machine/isa.h"

namespace nanovllm::cpu {

/// Stands for a token whose row of the table belongs to another rank; embed() gives zeros for it.
inline constexpr int32_t kElsewhere = -2;

/// The backend's operations on single rows; backend.h is their contract. Large ones are split over
/// the threads of parallel_for().
void embed(Tensor out, const PackedWeight& table, Tensor ids, Isa isa);
/// sum [T, n] += x [T, n]
void add(Tensor sum, Tensor x, Isa isa);
void rms_norm(Tensor out, Tensor x, const Norm& norm, Isa isa);
void sum_squares(Tensor squares, Tensor qkv, const WholeNorms& norms, Isa isa);
void scale_by_squares(Tensor qkv, Tensor squares, const WholeNorms& norms, Isa isa);
void gather_rows(Tensor out, Tensor x, Tensor rows);
void silu_mul(Tensor out, Tensor gate_up, Isa isa);
void rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Step& step, Isa isa);
void copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies);

}  // namespace nanovllm::cpu
