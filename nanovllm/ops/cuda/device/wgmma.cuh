#pragma once

// wgmma: one warpgroup multiplies A [64, 16] with B [16, N] into float accumulators; N is 32, 48,
// 64, 80, 96, 112, 128, 160, 192, 224 or 256. A comes from shared memory or from registers, B from
// shared memory. T is __nv_bfloat16 or __half; or __nv_fp8_e4m3, and then A is [64, 32] and comes
// from shared memory. For each j = 0 .. N/8-1 thread t of the warpgroup holds of the result D
//   d[4j], d[4j+1]    row 16*(t/32) + (t%32)/4,     columns 8j + 2*(t%4) and + 1
//   d[4j+2], d[4j+3]  the same columns, 8 rows below
// If A is in registers, the thread holds of A the elements at these rows and columns for j = 0
// (a[0] is the upper row, a[1] the lower row) and for j = 1 (a[2] and a[3]).
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".

#include <cuda_fp8.h>

#include "nanovllm/ops/cuda/device/hopper.cuh"

namespace nanovllm::cuda::hopper {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending committed groups are still running.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Pins registers to this place: the compiler may move nothing that computes or uses them across
/// it.
template <int kCount>
__device__ __forceinline__ void pin(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void pin(uint32_t (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

/// The descriptor of a tile in shared memory made of 128-byte-swizzle atoms (8 rows of 128 bytes,
/// 1024 bytes, aligned to 1024; 16-byte chunk c of row r is at c ^ r). For a K-major tile
/// `stride` is the distance of groups of 8 rows and `leading` unused; for an MN-major one `stride`
/// is the distance of groups of 8 along K and `leading` that of groups of 64 along M or N.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t stride,
                                                    uint32_t leading) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (static_cast<uint64_t>(stride >> 4) << 32) |
         (static_cast<uint64_t>(leading >> 4) << 16) | ((address & 0x3ffff) >> 4);
}

/// The descriptor of the matrix that begins `bytes` behind that of `descriptor`. Only the lower
/// word differs.
__device__ __forceinline__ uint64_t descriptor_at(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000) |
         static_cast<uint32_t>(static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

/// D += A B (accumulate = 0: D = A B). ss: A and B from shared memory, both K-major. rs: A from
/// registers, B from shared memory and MN-major. rs_k_major: A from registers, B K-major.
template <class T, int N>
struct Wgmma;

// clang-format off
// LIST_n(x, last) is x(0) x(1) ... last(n - 1), by tens. It writes the names and the constraints of d's
// registers, since asm takes neither an array nor a range of them.
#define TEN(x, t) x(t##0) x(t##1) x(t##2) x(t##3) x(t##4) x(t##5) x(t##6) x(t##7) x(t##8) x(t##9)
#define SIXTY(x) TEN(x, ) TEN(x, 1) TEN(x, 2) TEN(x, 3) TEN(x, 4) TEN(x, 5)
#define LIST_16(x, last) TEN(x, ) x(10) x(11) x(12) x(13) x(14) last(15)
#define LIST_24(x, last) TEN(x, ) TEN(x, 1) x(20) x(21) x(22) last(23)
#define LIST_32(x, last) TEN(x, ) TEN(x, 1) TEN(x, 2) x(30) last(31)
#define LIST_40(x, last) TEN(x, ) TEN(x, 1) TEN(x, 2) x(30) x(31) x(32) x(33) x(34) x(35) x(36) x(37) x(38) last(39)
#define LIST_48(x, last) TEN(x, ) TEN(x, 1) TEN(x, 2) TEN(x, 3) x(40) x(41) x(42) x(43) x(44) x(45) x(46) last(47)
#define LIST_56(x, last) TEN(x, ) TEN(x, 1) TEN(x, 2) TEN(x, 3) TEN(x, 4) x(50) x(51) x(52) x(53) x(54) last(55)
#define LIST_64(x, last) SIXTY(x) x(60) x(61) x(62) last(63)
#define LIST_80(x, last) SIXTY(x) TEN(x, 6) x(70) x(71) x(72) x(73) x(74) x(75) x(76) x(77) x(78) last(79)
#define LIST_96(x, last) SIXTY(x) TEN(x, 6) TEN(x, 7) TEN(x, 8) x(90) x(91) x(92) x(93) x(94) last(95)
#define LIST_112(x, last) SIXTY(x) TEN(x, 6) TEN(x, 7) TEN(x, 8) TEN(x, 9) TEN(x, 10) x(110) last(111)
#define LIST_128(x, last) SIXTY(x) TEN(x, 6) TEN(x, 7) TEN(x, 8) TEN(x, 9) TEN(x, 10) TEN(x, 11) \
  x(120) x(121) x(122) x(123) x(124) x(125) x(126) last(127)
#define LAST_NAME(i) "%" #i
#define NAME(i) LAST_NAME(i) ", "
#define LAST_VALUE(i) "+f"(d[i])
#define VALUE(i) LAST_VALUE(i),
#define WGMMA_TEXT(type, N, K, COUNT, INPUTS, ACCUMULATE, FLAGS)                                  \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE ", 0;\n"                                         \
  "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." #type "." #type                               \
  " {" LIST_##COUNT(NAME, LAST_NAME) "}, " INPUTS ", p, " FLAGS ";\n}\n"
#define WGMMA_SS(type, N, K, COUNT, INPUTS, ACCUMULATE, FLAGS)                                    \
  static __device__ __forceinline__ void ss(float (&d)[COUNT], uint64_t a, uint64_t b,            \
                                            int accumulate) {                                     \
    asm volatile(WGMMA_TEXT(type, N, K, COUNT, INPUTS, ACCUMULATE, FLAGS)                     \
                 : LIST_##COUNT(VALUE, LAST_VALUE) : "l"(a), "l"(b), "r"(accumulate));            \
  }
#define WGMMA_RS(name, flags, type, N, COUNT, INPUTS, ACCUMULATE)                                 \
  static __device__ __forceinline__ void name(float (&d)[COUNT], const uint32_t* a, uint64_t b,   \
                                              int accumulate) {                                   \
    asm volatile(WGMMA_TEXT(type, N, 16, COUNT, INPUTS, ACCUMULATE, flags)                            \
                 : LIST_##COUNT(VALUE, LAST_VALUE)                                                \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));          \
  }
#define WGMMA(T, type)                                                           \
  template <>                                                                    \
  struct Wgmma<T, 32> {                                                          \
    WGMMA_SS(type, 32, 16, 16, "%16, %17", "%18", "1, 1, 0, 0")                  \
    WGMMA_RS(rs_k_major, "1, 1, 0", type, 32, 16, "{%16, %17, %18, %19}, %20", "%21") \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 48> {                                                          \
    WGMMA_SS(type, 48, 16, 24, "%24, %25", "%26", "1, 1, 0, 0")                  \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 64> {                                                          \
    WGMMA_SS(type, 64, 16, 32, "%32, %33", "%34", "1, 1, 0, 0")                  \
    WGMMA_RS(rs_k_major, "1, 1, 0", type, 64, 32, "{%32, %33, %34, %35}, %36", "%37") \
    WGMMA_RS(rs, "1, 1, 1", type, 64, 32, "{%32, %33, %34, %35}, %36", "%37")    \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 80> {                                                          \
    WGMMA_SS(type, 80, 16, 40, "%40, %41", "%42", "1, 1, 0, 0")                  \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 96> {                                                          \
    WGMMA_SS(type, 96, 16, 48, "%48, %49", "%50", "1, 1, 0, 0")                  \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 112> {                                                         \
    WGMMA_SS(type, 112, 16, 56, "%56, %57", "%58", "1, 1, 0, 0")                 \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 128> {                                                         \
    WGMMA_SS(type, 128, 16, 64, "%64, %65", "%66", "1, 1, 0, 0")                 \
    WGMMA_RS(rs, "1, 1, 1", type, 128, 64, "{%64, %65, %66, %67}, %68", "%69")   \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 160> {                                                         \
    WGMMA_SS(type, 160, 16, 80, "%80, %81", "%82", "1, 1, 0, 0")                 \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 192> {                                                         \
    WGMMA_SS(type, 192, 16, 96, "%96, %97", "%98", "1, 1, 0, 0")                 \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 224> {                                                         \
    WGMMA_SS(type, 224, 16, 112, "%112, %113", "%114", "1, 1, 0, 0")             \
  };                                                                             \
  template <>                                                                    \
  struct Wgmma<T, 256> {                                                         \
    WGMMA_RS(rs, "1, 1, 1", type, 256, 128, "{%128, %129, %130, %131}, %132", "%133") \
  };
WGMMA(__nv_bfloat16, bf16)
WGMMA(__half, f16)
#define WGMMA_E4M3(N, COUNT, INPUTS, ACCUMULATE)                                  \
  template <>                                                                    \
  struct Wgmma<__nv_fp8_e4m3, N> {                                               \
    WGMMA_SS(e4m3, N, 32, COUNT, INPUTS, ACCUMULATE, "1, 1")                      \
  };
WGMMA_E4M3(32, 16, "%16, %17", "%18")
WGMMA_E4M3(48, 24, "%24, %25", "%26")
WGMMA_E4M3(64, 32, "%32, %33", "%34")
WGMMA_E4M3(80, 40, "%40, %41", "%42")
WGMMA_E4M3(96, 48, "%48, %49", "%50")
WGMMA_E4M3(112, 56, "%56, %57", "%58")
WGMMA_E4M3(128, 64, "%64, %65", "%66")
WGMMA_E4M3(160, 80, "%80, %81", "%82")
WGMMA_E4M3(192, 96, "%96, %97", "%98")
#undef WGMMA_E4M3
#undef WGMMA
#undef WGMMA_RS
#undef WGMMA_SS
#undef WGMMA_TEXT
#undef VALUE
#undef LAST_VALUE
#undef NAME
#undef LAST_NAME
#undef LIST_128
#undef LIST_112
#undef LIST_96
#undef LIST_80
#undef LIST_64
#undef LIST_56
#undef LIST_48
#undef LIST_40
#undef LIST_32
#undef LIST_24
#undef LIST_16
#undef SIXTY
#undef TEN
// clang-format on

}  // namespace nanovllm::cuda::hopper
