#pragma once

#include <cstdint>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/attention/kv_layout.cuh"
#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

/// backend.h's rope_and_store as the kernels see it.
struct RopeParams {
  void* qkv;                                // [T, (num_heads + 2 num_kv_heads) * head_dim]
  const float *q_norm, *k_norm;             // [head_dim] or null
  const float *cos, *sin;                   // [positions, head_dim / 2]
  const int32_t *positions, *slot_mapping;  // [T]
  void* k;  // the layer's K; its V lies layout.layer_stride elements further on
  KvLayout layout;
  int num_heads;
  float eps;

  RopeParams(const RopeStoreArgs& args, const KvCache& kv, const Batch& batch)
      : qkv(args.qkv.data),
        q_norm(args.q_norm.as<const float>()),
        k_norm(args.k_norm.as<const float>()),
        cos(args.cos.as<const float>()),
        sin(args.sin.as<const float>()),
        positions(batch.positions.as<const int32_t>()),
        slot_mapping(batch.slot_mapping.as<const int32_t>()),
        layout(kv),
        num_heads(static_cast<int>(args.num_heads)),
        eps(args.eps) {
    k = static_cast<char*>(kv.data) +
        2 * layout.layer_stride * args.layer * static_cast<int64_t>(dtype_size(kv.dtype));
  }
};

/// Norm of q and k, rotary embedding, and the store of k and v into the cache.
void rope_and_store(Launch where, const RopeStoreArgs& args, const KvCache& kv, const Batch& batch);

}  // namespace nanovllm::cuda
