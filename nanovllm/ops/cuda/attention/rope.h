#pragma once

#include <cstdint>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/device/runtime.h"
#if defined(__CUDACC__)
#include "nanovllm/ops/cuda/attention/kv_store.cuh"
#endif

namespace nanovllm::cuda {

/// The arguments of backend.h's rope_and_store in the form that the kernels take.
struct RopeParams {
  void* qkv;                                // [T, (num_heads + 2 num_kv_heads) * head_dim]
  const float *q_norm, *k_norm;             // [head_dim] or null
  const float *cos, *sin;                   // [positions, head_dim / 2]
  const int32_t *positions, *slot_mapping;  // [T]; a negative slot: the token is not stored
  void* k;                                  // the layer's K; its V is layout.layer_stride after it
  KvLayout layout;
  int num_heads;
  float eps;

  RopeParams(const RopeStoreArgs& args, const KvCache& kv, const Step& step)
      : qkv(args.qkv.data),
        q_norm(args.q_norm.as<const float>()),
        k_norm(args.k_norm.as<const float>()),
        cos(args.cos.as<const float>()),
        sin(args.sin.as<const float>()),
        positions(step.positions.as<const int32_t>()),
        slot_mapping(step.slot_mapping.as<const int32_t>()),
        layout(kv),
        num_heads(static_cast<int>(args.num_heads)),
        eps(args.eps) {
    k = layout.layer_keys(kv, args.layer);
  }

#if defined(__CUDACC__)
  /// The number of heads of a token in qkv: first the heads of q, then of k, then of v.
  __device__ int num_rows() const { return num_heads + 2 * layout.num_kv_heads; }
  __device__ bool is_q(int row) const { return row < num_heads; }
  __device__ bool is_v(int row) const { return row >= num_heads + layout.num_kv_heads; }
  __device__ const float* norm(int row) const {
    return is_q(row) ? q_norm : is_v(row) ? nullptr : k_norm;
  }
  /// Where the cache has the key or value head `row` in this slot. C: the type of its elements.
  template <class C>
  __device__ CacheEntry<C> cache_entry(int row, int slot) const {
    return {static_cast<char*>(k) + (is_v(row) ? layout.layer_stride : 0) +
                layout.entry(slot / layout.block_size, (row - num_heads) % layout.num_kv_heads),
            slot % layout.block_size};
  }
#endif
};

/// RMSNorm of q and k, if any, rotary embedding of both, and the store of k and v into the cache.
void rope_and_store(Launch where, const RopeStoreArgs& args, const KvCache& kv, const Step& step);

}  // namespace nanovllm::cuda
