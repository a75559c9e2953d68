#pragma once

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/device/runtime.h"

// The operations of backend.h on single rows. All compute in float32 and round once, when they
// store. Read this file first; then row_ops.cuh: device functions of these operations, for kernels
// that fuse them; then elementwise.cu: the kernels.
namespace nanovllm::cuda {

/// out [n, width] = table[rows [n] - first]; zeros where the table has no such row. Copies any
/// dtype.
void gather_rows(Launch where, Tensor out, Tensor table, Tensor rows, int64_t first = 0);
/// out [T, n] = x / rms(x) * weight; out may be x.
void rms_norm(Launch where, Tensor out, Tensor x, const Norm& norm);
/// Backend::sum_squares and Backend::scale_by_squares.
void sum_squares(Launch where, Tensor squares, Tensor qkv, const WholeNorms& norms);
void scale_by_squares(Launch where, Tensor qkv, Tensor squares, const WholeNorms& norms);
/// x [T, n] += y, which is [T, n] of x's dtype, or [n] float32 for every row.
void add(Launch where, Tensor x, Tensor y);
/// out = x converted to out's float dtype; both are contiguous.
void convert(Launch where, Tensor out, Tensor x);
/// out [T, n] = silu(gate_up [T, :n]) * gate_up [T, n:]
void silu_mul(Launch where, Tensor out, Tensor gate_up);
/// Backend::copy_blocks; `copies` are in device memory.
void copy_blocks(Launch where, const KvCache& kv, std::span<const BlockCopy> copies);
/// Reads this memory, a multiple of 16 bytes, so that it replaces what is in the L2 cache.
void read_all(Launch where, const void* memory, size_t bytes);
/// Keeps the GPU busy for this many clock cycles. Before and after a kernel that is measured, it
/// stands for the kernels before and after it in a step.
void spin(Launch where, int64_t num_cycles);

}  // namespace nanovllm::cuda
