// Quantizes rows of x for int_gemm.cpp. Like simd.h, this is only for sources in kernels/, and
// everything in it is local to them.
#pragma once

#include "nanovllm/ops/cpu/kernels/int_gemm.h"
#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

using I32 = int32_t __attribute__((vector_size(4 * kLanes)));
using I16 = int16_t __attribute__((vector_size(2 * kLanes)));

/// The form in which the values of a group of x are multiplied: with VNNI, high bytes and then low
/// bytes, both signed; without it 16-bit values, each four in the order 0, 2, 1, 3.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr bool kVnni = true;
using XValue = int8_t;
#else
constexpr bool kVnni = false;
using XValue = int16_t;
#endif
constexpr int64_t kXValueBytes = 2;
/// The largest value whose high and low byte are both at most 127.
constexpr float kLargest = 127 * 257;
// Integer sums of a group fit in 32 bits.
static_assert(int64_t{127 * 257} * 255 * kLargeIntGroup <= INT32_MAX);

template <class T, int64_t kGroup>
void quantize_groups(void* row, const void* x, const int32_t* order, int64_t k) {
  constexpr int kVectors = kGroup / kLanes;
  const int64_t groups = (k + kGroup - 1) / kGroup;
  auto* values = static_cast<XValue*>(row);
  auto* scales = reinterpret_cast<float*>(static_cast<char*>(row) + groups * kGroup * kXValueBytes);
  const T* from = static_cast<const T*>(x);
  for (int64_t g = 0; g < groups; ++g, values += kGroup * (kVnni ? 2 : 1)) {
    const int64_t first = g * kGroup, count = k - first < kGroup ? k - first : kGroup;
    const T* elements = from + first;
    T gathered[kGroup] = {};
    if (order != nullptr || count < kGroup) {
      for (int64_t i = 0; i < count; ++i)
        gathered[i] = from[order != nullptr ? order[first + i] : first + i];
      elements = gathered;
    }
    // The bits of magnitudes, compared as integers, have the order of the floats; infinity is
    // larger than all numbers, and NaN is larger than infinity.
    F32 v[kVectors];
    I32 most = {};
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i) {
      v[i] = load(elements + i * kLanes);
      const I32 size = reinterpret_cast<I32>(v[i]) & 0x7fffffff;
      most = size > most ? size : most;
    }
    int32_t largest = 0;
    for (int i = 0; i < kLanes; ++i) largest = most[i] > largest ? most[i] : largest;
    float size;
    __builtin_memcpy(&size, &largest, sizeof size);
    // A group so small counts as zeros, since the inverse could be infinite.
    const float inverse = size < 1e-30f ? 0 : kLargest / size;
    const float scale = size < 1e-30f ? 0 : size / kLargest;
    U32 total = {};  // wraps around if x is not finite
    int16_t rounded[kGroup];
#pragma GCC unroll 32
    for (int i = 0; i < kVectors; ++i) {
      // Adding 1.5 * 2^23 rounds to an integer, in the low bits.
      const I32 value =
          reinterpret_cast<I32>(fma(v[i], broadcast(inverse), broadcast(12582912.0f))) - 0x4b400000;
      total += reinterpret_cast<U32>(value);
      const I16 narrow = __builtin_convertvector(value, I16);
      __builtin_memcpy(rounded + i * kLanes, &narrow, sizeof narrow);
    }
    uint32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += total[i];
    if constexpr (kVnni) {
      for (int i = 0; i < kGroup; ++i) {
        values[i] = static_cast<XValue>((rounded[i] + 128) >> 8);
        values[kGroup + i] = static_cast<XValue>(rounded[i]);
      }
    } else {
      for (int i = 0; i < kGroup; i += 4) {
        values[i] = static_cast<XValue>(rounded[i]);
        values[i + 1] = static_cast<XValue>(rounded[i + 2]);
        values[i + 2] = static_cast<XValue>(rounded[i + 1]);
        values[i + 3] = static_cast<XValue>(rounded[i + 3]);
      }
    }
    scales[g] = scale;
    scales[groups + g] = scale * static_cast<float>(static_cast<int32_t>(sum));
  }
}

/// Implements IntGemmKernels::quantize_row.
template <class T>
void quantize_row(void* row, const void* x, const int32_t* order, int64_t k, int64_t group) {
  if (group == kLargeIntGroup) quantize_groups<T, kLargeIntGroup>(row, x, order, k);
  else quantize_groups<T, kIntGroup>(row, x, order, k);
}

}  // namespace
}  // namespace nanovllm::cpu::NANOVLLM_ISA
