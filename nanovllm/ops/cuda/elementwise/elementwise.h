#pragma once

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/device/runtime.h"

// The operations of backend.h that are neither products nor attention. All compute in float32 and
// round once, at the store.
namespace nanovllm::cuda {

/// out [n, width] = table[rows [n] - first], rows of any dtype; zeros where the table has no such
/// row.
void gather_rows(Launch where, Tensor out, Tensor table, Tensor rows, int64_t first = 0);
void rms_norm(Launch where, Tensor out, Tensor x, const Norm& norm);
/// x [T, n] += y, which is [T, n] of x's dtype, or [n] float32 for every row.
void add(Launch where, Tensor x, Tensor y);
/// out = x, of another float dtype; both without gaps.
void convert(Launch where, Tensor out, Tensor x);
/// Does nothing for so long: what is measured starts and ends beside it as in a step.
void idle(Launch where, int64_t num_cycles);
void silu_mul(Launch where, Tensor out, Tensor gate_up);
/// pairs [n, 2] int32 in the device's memory: block pairs[i][0] onto pairs[i][1], all layers.
void copy_blocks(Launch where, const KvCache& kv, Tensor pairs);

}  // namespace nanovllm::cuda
