#include "nanovllm/engine/block_pool.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <random>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"

namespace nanovllm {

uint64_t block_hash(uint64_t previous, std::span<const int32_t> token_ids) {
  const int32_t* const ids = token_ids.data();
  check(ids != nullptr, "a block without tokens has no hash");
  return XXH64(ids, token_ids.size_bytes(), previous);
}

BlockPool::BlockPool(int64_t num_blocks, int64_t block_size, bool enable_prefix_caching,
                     BlockHashFunction hash, int64_t num_kept)
    : blocks_(to_size(num_blocks)),
      block_size_(block_size),
      enable_prefix_caching_(enable_prefix_caching),
      hash_(hash),
      hash_key_(uint64_t{std::random_device()()} << 32 | std::random_device()()),
      num_kept_(num_kept) {
  cached_.reserve(blocks_.size());
}

bool BlockPool::holds(const Block& b, const BlockRef& parent, const CacheSalt& salt,
                      std::span<const int32_t> ids) const {
  const bool has_salt = parent.id >= 0 || b.salt == salt || (b.salt && salt && *b.salt == *salt);
  return b.parent == parent && has_salt && std::ranges::equal(b.token_ids, ids);
}

uint64_t BlockPool::hash_before(const CacheSalt& salt) const {
  if (!salt) return hash_key_;
  const char* const text = salt->c_str();
  check(text != nullptr, "a salt without a text");
  return XXH64(text, salt->size(), hash_key_);
}

void BlockPool::match_prefix(const Sequence& seq, std::vector<int32_t>& prefix) const {
  prefix.clear();
  if (!enable_prefix_caching_) return;
  const std::span<const int32_t> tokens = seq.token_ids;
  uint64_t previous = hash_before(seq.cache_salt);
  BlockRef parent;
  for (int64_t end = block_size_; end <= seq.num_known(); end += block_size_) {
    const auto ids = tokens.subspan(to_size(end - block_size_), to_size(block_size_));
    const uint64_t h = hash_(previous, ids);
    const auto hit = cached_.find(h);
    if (hit == cached_.end() || !holds(block(hit->second), parent, seq.cache_salt, ids)) return;
    prefix.push_back(hit->second);
    previous = h;
    parent = ref(hit->second);
  }
}

bool BlockPool::allocate(Sequence& seq, std::span<const int32_t> prefix, int64_t num_blocks) {
  check(seq.block_table.empty(), "sequence {} already has blocks", seq.id);
  const auto is_free = [&](int32_t id) { return block(id).ref_count == 0; };
  const int64_t num_new = num_blocks - std::ssize(prefix);
  if (num_new + std::ranges::count_if(prefix, is_free) > num_free()) return false;
  for (const int32_t id : prefix) share(id);
  seq.block_table.assign(prefix.begin(), prefix.end());
  seq.num_hashed = std::ssize(prefix);
  seq.last_hash = prefix.empty() ? std::nullopt : block(prefix.back()).hash;
  seq.last_block = prefix.empty() ? BlockRef() : ref(prefix.back());
  return append(seq, num_new);
}

bool BlockPool::append(Sequence& seq, int64_t num_blocks) {
  if (num_blocks > num_free()) return false;
  for (int64_t i = 0; i < num_blocks; ++i) seq.block_table.push_back(take_free());
  return true;
}

void BlockPool::deallocate(Sequence& seq) {
  for (auto id = seq.block_table.rbegin(); id != seq.block_table.rend(); ++id) release(*id);
  seq.block_table.clear();
}

bool BlockPool::fork(const Sequence& parent, Sequence& child, std::vector<BlockCopy>& copies) {
  const int64_t num_full = parent.num_prompt_tokens / block_size_;
  const auto full = std::span(parent.block_table).first(to_size(num_full));
  if (!allocate(child, full, ceil_div(parent.num_prompt_tokens, block_size_))) return false;
  child.num_hashed = std::min(parent.num_hashed, num_full);
  child.last_hash = parent.last_hash;
  child.last_block = parent.last_block;
  if (std::ssize(child.block_table) > num_full)
    copies.push_back({parent.block_table[full.size()], child.block_table.back()});
  return true;
}

void BlockPool::register_blocks(Sequence& seq, int64_t limit) {
  if (!enable_prefix_caching_) return;
  const std::span<const int32_t> tokens = seq.token_ids;
  for (; (seq.num_hashed + 1) * block_size_ <= limit; ++seq.num_hashed) {
    const bool first = seq.num_hashed == 0;
    const auto ids = tokens.subspan(to_size(seq.num_hashed * block_size_), to_size(block_size_));
    const uint64_t h = hash_(first ? hash_before(seq.cache_salt) : *seq.last_hash, ids);
    const BlockRef parent = seq.last_block;
    seq.last_hash = h;
    const bool reachable = first || is_current(parent);
    if (!reachable) continue;  // a collision or a reuse further up: no lookup can reach this block
    auto [entry, is_new] = cached_.try_emplace(h, -1);
    if (!is_new) {
      Block& other = block(entry->second);
      if (holds(other, parent, seq.cache_salt, ids)) {
        seq.last_block = ref(entry->second);
        continue;
      }
      const bool orphan = other.parent.id >= 0 && !is_current(other.parent);
      if (!orphan) {  // the hashes collide: the first registration stays
        seq.last_block = {};
        continue;
      }
      other.hash.reset();  // its parent was reused: no lookup can reach it
    }
    const int32_t id = seq.block_table[to_size(seq.num_hashed)];
    Block& b = block(id);
    b.hash = h;
    b.parent = parent;
    b.salt = first ? seq.cache_salt : nullptr;
    b.token_ids.assign(ids.begin(), ids.end());
    entry->second = id;
    seq.last_block = ref(id);
  }
}

void BlockPool::forget(const Sequence& seq) {
  for (const int32_t id : seq.block_table) forget(id);
}

void BlockPool::reset_prefix_cache() {
  // This increments generations: running sequences must not extend a chain that nobody can find.
  while (!cached_.empty()) forget(cached_.begin()->second);
}

void BlockPool::forget(int32_t id) {
  Block& b = block(id);
  if (b.hash) {
    cached_.erase(*b.hash);
    b.hash.reset();
  }
  ++b.generation;
}

int32_t BlockPool::take_free() {
  check(num_free() > 0, "no free block");
  const bool evicts = !free_.empty() && block(free_.front()).hash;
  if (num_used_ < num_blocks() && (free_.empty() || (evicts && num_used_ < num_kept_))) {
    block(num_used_).place = free_.insert(free_.begin(), num_used_);
    ++num_used_;
  }
  const int32_t id = free_.front();
  in_use_.splice(in_use_.end(), free_, free_.begin());
  forget(id);
  block(id).ref_count = 1;
  ++stats_.blocks_taken;
  return id;
}

void BlockPool::share(int32_t id) {
  if (block(id).ref_count++ == 0) in_use_.splice(in_use_.end(), free_, block(id).place);
  ++stats_.blocks_shared;
}

void BlockPool::release(int32_t id) {
  Block& b = block(id);
  check(b.ref_count > 0, "block {} is freed twice", id);
  if (--b.ref_count > 0) return;
  free_.splice(b.hash ? free_.end() : free_.begin(), in_use_, b.place);
  ++stats_.blocks_freed;
}

}  // namespace nanovllm
