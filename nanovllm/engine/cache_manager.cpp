#include "nanovllm/engine/cache_manager.h"

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"

namespace nanovllm {

CacheManager::CacheManager(const std::vector<CacheSpec>& groups, int64_t block_size,
                           bool enable_prefix_caching, BlockHashFunction hash) {
  for (const CacheSpec& group : groups)
    blocks_.emplace_back(group.count, block_size, enable_prefix_caching, hash, group.num_kept);
  check(blocks_.size() == 1, "a sequence has one block table, but there are {} groups of blocks",
        blocks_.size());
}

void CacheManager::match(const Sequence& seq, CacheHit& hit) const {
  hit.prefix.blocks.clear();
  hit.prefix.num_free = 0;
  if (!seq.wants_prompt_logprobs()) blocks().match_prefix(seq, hit.prefix);
  hit.length = std::ssize(hit.prefix.blocks) * blocks().block_size();
}

bool CacheManager::start(Sequence& seq, const CacheHit& hit, int64_t high) {
  const int64_t num_blocks = ceil_div(high, blocks().block_size());
  if (!blocks().can_allocate(hit.prefix, num_blocks)) return false;
  blocks().allocate(seq, hit.prefix, num_blocks);
  return true;
}

bool CacheManager::reserve(Sequence& seq, int64_t high) {
  const int64_t num_new = ceil_div(high, blocks().block_size()) - std::ssize(seq.block_table);
  if (!blocks().can_append(num_new)) return false;
  for (int64_t i = 0; i < num_new; ++i) blocks().append(seq);
  return true;
}

bool CacheManager::fork(const Sequence& parent, Sequence& child, std::vector<BlockCopy>& copies) {
  const bool has_copy = parent.num_prompt_tokens % blocks().block_size() != 0;
  if (has_copy && !blocks().can_append(1)) return false;
  if (const auto copy = blocks().fork(parent, child)) copies.push_back(*copy);
  return true;
}

void CacheManager::forget(const Sequence& seq) {
  // A sequence that was preempted has no blocks any more, and any free block may be its own.
  if (seq.block_table.empty()) reset_prefix_cache();
  else blocks().forget(seq);
}

}  // namespace nanovllm
