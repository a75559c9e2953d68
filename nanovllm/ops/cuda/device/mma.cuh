#pragma once

#include "nanovllm/ops/cuda/device/device.cuh"

// The matrix instructions of a warp that Ampere and all later GPUs have. Fragments are those of the
// PTX ISA: of an operand a and of c, lane l holds rows l / 4 (and + 8) and columns 2 (l % 4) and
// 2 (l % 4) + 1 (and + 8); for b, exchange rows and columns.
namespace nanovllm::cuda {

/// Loads four 8x8 matrices of 16-bit elements from shared memory. Lane l gives the address of row
/// l % 8 of matrix l / 8.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
/// ldmatrix_x4() with each matrix transposed.
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Transposes an 8x8 matrix of 16-bit elements; lane l has columns 2 (l % 4) and the next of row
/// l / 4.
__device__ inline uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// c [16, 8] += a [16, 16] b [16, 8]
template <class T>
__device__ inline void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace nanovllm::cuda
