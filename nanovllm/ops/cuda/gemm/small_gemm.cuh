#pragma once

#include "nanovllm/ops/cuda/device/mma.cuh"
#include "nanovllm/ops/cuda/elementwise/row_ops.cuh"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"

// Device code of small_gemm.cu. A lane copies into shared memory exactly those pieces of w that it
// will feed to the tensor cores itself, so no other thread waits for them: since the order of k
// inside a GEMM is free, a piece is 16 contiguous bytes of one row. Of a chunk of k, lane 4 q + p
// takes elements 8 p to 8 p + 7 and 32 + 8 p to 32 + 8 p + 7 of row q of 8, and of token q.
namespace nanovllm::cuda {

constexpr int kChunk = 64;            // of k
constexpr int kPieceBytes = 32 * 16;  // 16 bytes for each lane of a warp

/// Copies 16 bytes of weights into shared memory. The other lanes and chunks read the rest of the
/// 128 bytes soon, so the L2 cache fetches them at once.
__device__ inline void copy_weights(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
__device__ inline uint4 load_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

}  // namespace nanovllm::cuda
