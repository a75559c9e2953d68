#pragma once

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/machine/isa.h"

namespace nanovllm::cpu {

/// Index of the first element of K (or of V) of a layer's block and KV head, which is a dense
/// matrix [block_size, head_dim]. The pool is [layers, blocks, 2, kv_heads, block_size, head_dim],
/// so that one head's keys of a block are contiguous.
inline int64_t kv_offset(const KvCache& kv, int64_t layer, int64_t block, int64_t value_not_key,
                         int64_t kv_head) {
  return ((((layer * kv.num_blocks + block) * 2 + value_not_key) * kv.num_kv_heads) + kv_head) *
         kv.block_size * kv.head_dim;
}

/// Backend::attention. The cache is read in place, and no slot beyond a sequence's context is read.
/// head_dim must be a multiple of 8 and block_size a multiple of 16. The bits of a token's output
/// depend on its query and its keys alone (kernels/attention.h says how), for every dtype. The
/// work is split over the threads of parallel_for().
void attention(const AttentionArgs& args, const KvCache& kv, const Batch& batch, Isa isa);

}  // namespace nanovllm::cpu
