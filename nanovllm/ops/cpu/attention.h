#pragma once

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/kernels/attention.h"
#include "nanovllm/ops/cpu/machine/isa.h"

namespace nanovllm::cpu {

/// The keys (or values) of one KV head in a layer's block: groups of kKeyGroup keys
/// (kernels/attention.h), one after the other. The pool is [layers, blocks, 2, kv_heads] of these
/// entries, so that one head's keys of a block are contiguous.
inline char* kv_entry(const KvCache& kv, int64_t layer, int64_t block, int64_t value_not_key,
                      int64_t kv_head) {
  const int64_t entry =
      (((layer * kv.num_blocks + block) * 2 + value_not_key) * kv.num_kv_heads) + kv_head;
  return static_cast<char*>(kv.data) + entry * kv.entry_bytes();
}
/// The elements [head_dim] of key `row` of an entry, and its scale, which only kE4M3 has.
inline char* kv_key(const KvCache& kv, char* entry, int64_t row) {
  return entry + row / kKeyGroup * kKeyGroup * kv.key_bytes() +
         row % kKeyGroup * kv.head_dim * static_cast<int64_t>(dtype_size(kv.dtype));
}
inline float* kv_key_scale(const KvCache& kv, char* entry, int64_t row) {
  char* const group = kv_key(kv, entry, row / kKeyGroup * kKeyGroup);
  return reinterpret_cast<float*>(group + kKeyGroup * kv.head_dim) + row % kKeyGroup;
}

/// Backend::attention. The cache is read in place, and no slot beyond a sequence's context counts.
/// head_dim must be a multiple of 8 and block_size a multiple of 16. The bits of a token's output
/// depend on its query, its keys and the instruction set alone (kernels/attention.h says how), for
/// every dtype. `isa` is for sequences with one new token, `prompt_isa` for those with more. The
/// work is split over the threads of parallel_for().
void attention(const AttentionArgs& args, const KvCache& kv, const Step& step, Isa isa,
               Isa prompt_isa);

}  // namespace nanovllm::cpu
