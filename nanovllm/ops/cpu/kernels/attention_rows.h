// The code that the attention kernels of one instruction set share. Like simd.h, this is only for
// sources in kernels/, and everything in it is local to them.
#pragma once

#include "nanovllm/ops/cpu/kernels/attention.h"
#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

/// The vectors and the keys of a panel of K.
constexpr int kVectors = kLanes == 16 ? 4 : 2;
constexpr int kPanelKeys = kVectors * kLanes;
static_assert(kPanelKeys <= kMaxPanelKeys);

template <class T>
const T* key_row(const void* const* groups, int key, int head_dim) {
  return static_cast<const T*>(groups[key / kKeyGroup]) + key % kKeyGroup * head_dim;
}

/// The keys of the block that the row sees.
inline int num_visible(const KeyBlockArgs& a, int row) {
  const int keys = a.first_visible + row / a.group;
  return keys < kKeyBlock ? keys : kKeyBlock;
}

/// A row's weights, which begin where its scores do.
template <class Weight>
Weight* weights_of(const KeyBlockArgs& a, int row) {
  return reinterpret_cast<Weight*>(a.scores + row * kKeyBlock);
}

}  // namespace
}  // namespace nanovllm::cpu::NANOVLLM_ISA
