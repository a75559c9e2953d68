#pragma once

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/isa.h"

namespace nanovllm::cpu {

/// Where K of (layer, block, kv head) lies: [block_size, head_dim] elements in a row, V's the same
/// further on. The pool is [layers, blocks, 2, kv_heads, block_size, head_dim], so that one head's
/// keys of a block are contiguous.
inline int64_t kv_offset(const KvCache& kv, int64_t layer, int64_t block, int64_t value_not_key,
                         int64_t kv_head) {
  return ((((layer * kv.num_blocks + block) * 2 + value_not_key) * kv.num_kv_heads) + kv_head) *
         kv.block_size * kv.head_dim;
}

/// Backend::attention. The cache is read in place; no slot beyond a sequence's context is looked
/// at. Any head_dim that is a multiple of 8 and any block_size that is a multiple of 16. A token's
/// bits follow from its query and its keys alone (attention_kernels.h tells how), for every dtype.
/// Tasks are spread over OpenMP's threads.
void attention(const AttentionArgs& args, const KvCache& kv, const Batch& batch, Isa isa);

}  // namespace nanovllm::cpu
