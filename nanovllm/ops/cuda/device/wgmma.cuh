#pragma once

// wgmma: one warpgroup multiplies A [64, 16] with B [16, N] into float accumulators; N is 32, 48,
// 64, 96, 128, 192 or 256. A comes from shared memory or from registers, B from shared memory, T is
// __nv_bfloat16 or __half. Thread t of the warpgroup holds of D, for column pair j = 0 .. N/8-1:
//   d[4j], d[4j+1]    row 16*(t/32) + (t%32)/4,     columns 8j + 2*(t%4) and + 1
//   d[4j+2], d[4j+3]  the same columns, 8 rows below
// and of A from registers the same for columns 0..7 (a[0], a[1]: upper, lower row) and 8..15.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".

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

/// Pins registers to this place: the compiler may move no computation of or with them across it.
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
/// 1024 bytes, aligned to 1024; 16-byte chunk c of row r lies at c ^ r). For a K-major tile
/// `stride` is the distance of groups of 8 rows and `leading` unused; for an MN-major one `stride`
/// is the distance of groups of 8 along K and `leading` that of groups of 64 along M or N.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, uint32_t stride,
                                                    uint32_t leading) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | (static_cast<uint64_t>(stride >> 4) << 32) |
         (static_cast<uint64_t>(leading >> 4) << 16) | ((address & 0x3ffff) >> 4);
}

/// D += A B (accumulate = 0: D = A B). ss: A and B from shared memory, both K-major. rs: A from
/// registers, B from shared memory and MN-major.
template <class T, int N>
struct Wgmma;

// clang-format off
// Names and constraints of d's registers, by tens: asm takes neither an array nor a range of them.
#define NAMES_10(t) \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define NAMES_60 NAMES_10() NAMES_10(1) NAMES_10(2) NAMES_10(3) NAMES_10(4) NAMES_10(5)
#define NAMES_16 NAMES_10() "%10, %11, %12, %13, %14, %15"
#define NAMES_24 NAMES_10() NAMES_10(1) "%20, %21, %22, %23"
#define NAMES_32 NAMES_10() NAMES_10(1) NAMES_10(2) "%30, %31"
#define NAMES_48 NAMES_10() NAMES_10(1) NAMES_10(2) NAMES_10(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_64 NAMES_60 "%60, %61, %62, %63"
#define NAMES_96 NAMES_60 NAMES_10(6) NAMES_10(7) NAMES_10(8) "%90, %91, %92, %93, %94, %95"
#define NAMES_128 NAMES_60 NAMES_10(6) NAMES_10(7) NAMES_10(8) NAMES_10(9) NAMES_10(10) NAMES_10(11) \
  "%120, %121, %122, %123, %124, %125, %126, %127"
#define D(i) "+f"(d[i])
#define D_10(t) D(t##0), D(t##1), D(t##2), D(t##3), D(t##4), D(t##5), D(t##6), D(t##7), D(t##8), D(t##9)
#define D_60 D_10(), D_10(1), D_10(2), D_10(3), D_10(4), D_10(5)
#define D_16 D_10(), D(10), D(11), D(12), D(13), D(14), D(15)
#define D_24 D_10(), D_10(1), D(20), D(21), D(22), D(23)
#define D_32 D_10(), D_10(1), D_10(2), D(30), D(31)
#define D_48 D_10(), D_10(1), D_10(2), D_10(3), D(40), D(41), D(42), D(43), D(44), D(45), D(46), D(47)
#define D_64 D_60, D(60), D(61), D(62), D(63)
#define D_96 D_60, D_10(6), D_10(7), D_10(8), D(90), D(91), D(92), D(93), D(94), D(95)
#define D_128 D_60, D_10(6), D_10(7), D_10(8), D_10(9), D_10(10), D_10(11), \
  D(120), D(121), D(122), D(123), D(124), D(125), D(126), D(127)
#define WGMMA_TEXT(type, N, COUNT, INPUTS, ACCUMULATE, FLAGS)                                     \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " ACCUMULATE ", 0;\n"                                         \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #type "." #type " {" NAMES_##COUNT "}, "      \
  INPUTS ", p, " FLAGS ";\n}\n"
#define WGMMA_SS(type, N, COUNT, INPUTS, ACCUMULATE)                                              \
  static __device__ __forceinline__ void ss(float (&d)[COUNT], uint64_t a, uint64_t b,            \
                                            int accumulate) {                                     \
    asm volatile(WGMMA_TEXT(type, N, COUNT, INPUTS, ACCUMULATE, "1, 1, 0, 0")                     \
                 : D_##COUNT : "l"(a), "l"(b), "r"(accumulate));                                  \
  }
#define WGMMA_RS(type, N, COUNT, INPUTS, ACCUMULATE)                                              \
  static __device__ __forceinline__ void rs(float (&d)[COUNT], const uint32_t* a, uint64_t b,     \
                                            int accumulate) {                                     \
    asm volatile(WGMMA_TEXT(type, N, COUNT, INPUTS, ACCUMULATE, "1, 1, 1")                        \
                 : D_##COUNT : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate)); \
  }
#define WGMMA(T, type)                                                    \
  template <>                                                             \
  struct Wgmma<T, 32> {                                                   \
    WGMMA_SS(type, 32, 16, "%16, %17", "%18")                             \
  };                                                                      \
  template <>                                                             \
  struct Wgmma<T, 48> {                                                   \
    WGMMA_SS(type, 48, 24, "%24, %25", "%26")                             \
  };                                                                      \
  template <>                                                             \
  struct Wgmma<T, 64> {                                                   \
    WGMMA_SS(type, 64, 32, "%32, %33", "%34")                             \
    WGMMA_RS(type, 64, 32, "{%32, %33, %34, %35}, %36", "%37")            \
  };                                                                      \
  template <>                                                             \
  struct Wgmma<T, 96> {                                                   \
    WGMMA_SS(type, 96, 48, "%48, %49", "%50")                             \
  };                                                                      \
  template <>                                                             \
  struct Wgmma<T, 128> {                                                  \
    WGMMA_SS(type, 128, 64, "%64, %65", "%66")                            \
    WGMMA_RS(type, 128, 64, "{%64, %65, %66, %67}, %68", "%69")           \
  };                                                                      \
  template <>                                                             \
  struct Wgmma<T, 192> {                                                  \
    WGMMA_SS(type, 192, 96, "%96, %97", "%98")                            \
  };                                                                      \
  template <>                                                             \
  struct Wgmma<T, 256> {                                                  \
    WGMMA_RS(type, 256, 128, "{%128, %129, %130, %131}, %132", "%133")    \
  };
WGMMA(__nv_bfloat16, bf16)
WGMMA(__half, f16)
#undef WGMMA
#undef WGMMA_RS
#undef WGMMA_SS
#undef WGMMA_TEXT
#undef D_128
#undef D_96
#undef D_64
#undef D_48
#undef D_32
#undef D_24
#undef D_16
#undef D_60
#undef D_10
#undef D
#undef NAMES_128
#undef NAMES_96
#undef NAMES_64
#undef NAMES_48
#undef NAMES_32
#undef NAMES_24
#undef NAMES_16
#undef NAMES_60
#undef NAMES_10
// clang-format on

}  // namespace nanovllm::cuda::hopper
