#include "nanovllm/engine/cache_manager.h"

namespace nanovllm {

void CacheManager::match(const Sequence& seq, uint64_t step, CacheHit& hit) const {
  const int64_t size = blocks_.block_size();
  hit.blocks.clear();
  hit.snapshot.reset();
  hit.grows = false;
  if (!seq.wants_prompt_logprobs()) blocks_.match_prefix(seq, hit.blocks);
  // The last token is always computed, for its logits, so no state may include it.
  if (states_ && std::ssize(hit.blocks) * size == seq.num_known()) hit.blocks.pop_back();
  hit.branch = std::ssize(hit.blocks) * size;
  while (states_ && !hit.blocks.empty()) {
    const SnapshotPool::Snapshot* const found = states_->find(blocks_.ref(hit.blocks.back()));
    if (found != nullptr && found->step < step) {
      hit.snapshot = found->number;
      break;
    }
    hit.grows |= found != nullptr;
    hit.blocks.pop_back();
  }
  hit.length = std::ssize(hit.blocks) * size;
}

bool CacheManager::start(Sequence& seq, const CacheHit& hit, int64_t high) {
  if (!blocks_.allocate(seq, hit.blocks, ceil_div(high, blocks_.block_size()))) return false;
  seq.branch = hit.branch;
  if (hit.snapshot) states_->use(*hit.snapshot);
  return true;
}

int64_t CacheManager::row_end(const Sequence& seq) const {
  const int64_t size = blocks_.block_size(), end = seq.num_tokens();
  if (!states_ || states_->size() == 0) return end;
  if (seq.num_computed < seq.branch) return seq.branch;
  const int64_t last_border = (end - 1) / size * size;
  return seq.num_computed < last_border ? last_border : end;
}

void CacheManager::save_state(Sequence& seq, uint64_t step, std::vector<StateCopy>& copies) {
  const int64_t size = blocks_.block_size(), depth = seq.num_computed;
  const bool is_wanted = depth == seq.branch || depth + size >= seq.num_tokens();
  if (!states_ || depth % size != 0 || !is_wanted) return;
  const auto snapshot = states_->take(depth, step);
  if (!snapshot) return;
  seq.saved.push_back(*snapshot);
  copies.push_back({StateCopy::Kind::kSave, seq.slot, snapshot->number});
}

void CacheManager::commit(Sequence& seq, int64_t known) {
  auto next = seq.saved.begin();
  for (; next != seq.saved.end() && next->depth <= known; ++next) {
    blocks_.register_blocks(seq, next->depth);
    if (blocks_.is_current(seq.last_block)) states_->store(*next, seq.last_block);
    else states_->drop(*next);
    if (next->depth >= seq.num_prompt_tokens)
      states_->drop(std::exchange(seq.last_of_answer, *next));
  }
  seq.saved.erase(seq.saved.begin(), next);
  blocks_.register_blocks(seq, known);
}

void CacheManager::release(Sequence& seq) {
  for (const SnapshotRef& snapshot : seq.saved) states_->drop(snapshot);
  seq.saved.clear();
  blocks_.deallocate(seq);
}

void CacheManager::forget(const Sequence& seq) {
  // If it was preempted meanwhile, any free block may be its own. Its states may be found under
  // blocks of other sequences.
  if (seq.block_table.empty() || states_) reset_prefix_cache();
  else blocks_.forget(seq);
}

}  // namespace nanovllm
