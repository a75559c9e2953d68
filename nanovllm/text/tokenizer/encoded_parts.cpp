#include "nanovllm/text/tokenizer/encoded_parts.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <random>
#include <utility>

namespace nanovllm {

EncodedParts::EncodedParts(size_t max_bytes)
    : max_bytes_(max_bytes), hash_{std::random_device()()} {}

bool EncodedParts::find(const Key& key, std::vector<int32_t>& ids) {
  if (key.text.size() < kLeastBytes) return false;
  const std::lock_guard lock(mutex_);
  Partition* const partition = partition_of(key.owner);
  if (partition == nullptr) return false;
  const auto entry = partition->find(key);
  if (entry == partition->entries.end()) return false;
  partition->entries.splice(partition->entries.begin(), partition->entries, entry);
  ids.insert(ids.end(), entry->ids.begin(), entry->ids.end());
  return true;
}

void EncodedParts::add(const Key& key, std::span<const int32_t> ids) {
  if (key.text.size() < kLeastBytes) return;
  Entry added = {std::string(key.text), key.at_start, {ids.begin(), ids.end()}};
  const size_t bytes = added.num_bytes();
  if (bytes > max_bytes_ / 4) return;
  const std::lock_guard lock(mutex_);
  Partition* partition = partition_of(key.owner);
  // Two threads may have encoded the same part at the same time.
  if (partition != nullptr && partition->find(key) != partition->entries.end()) return;
  if (partition == nullptr) {
    partitions_.push_front(
        {.owner = std::string(key.owner), .by_text = decltype(Partition::by_text)(0, hash_)});
    partition = &partitions_.front();
  }
  partition->entries.push_front(std::move(added));
  const auto entry = partition->entries.begin();
  partition->by_text.emplace(entry->text, entry);
  partition->num_bytes += bytes;
  num_bytes_ += bytes;
  make_room();
}

size_t EncodedParts::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

void EncodedParts::make_room() {
  if (partitions_.size() > kMaxOwners) {
    num_bytes_ -= partitions_.back().num_bytes;
    partitions_.pop_back();
  }
  while (num_bytes_ > max_bytes_) {
    const auto largest = std::ranges::max_element(partitions_, {}, &Partition::num_bytes);
    num_bytes_ -= largest->entries.back().num_bytes();
    largest->drop_oldest();
    if (largest->entries.empty()) partitions_.erase(largest);
  }
}

/// The owner's partition, which becomes the most recently used one, or null.
EncodedParts::Partition* EncodedParts::partition_of(std::string_view owner) {
  const auto at = std::ranges::find(partitions_, owner, &Partition::owner);
  if (at == partitions_.end()) return nullptr;
  partitions_.splice(partitions_.begin(), partitions_, at);
  return &partitions_.front();
}

size_t EncodedParts::Entry::num_bytes() const {
  constexpr size_t kNodes = 256;  // bytes of nodes of the list and the table, with malloc()'s own
  return kNodes + text.size() + ids.size() * sizeof(int32_t);
}

size_t EncodedParts::Hash::operator()(std::string_view text) const {
  return XXH3_64bits_withSeed(text.data(), text.size(), key);
}

EncodedParts::Entries::iterator EncodedParts::Partition::find(const Key& key) {
  const auto [first, last] = by_text.equal_range(key.text);
  const auto at = std::find_if(
      first, last, [&](const auto& found) { return found.second->at_start == key.at_start; });
  return at == last ? entries.end() : at->second;
}

void EncodedParts::Partition::drop_oldest() {
  const auto oldest = std::prev(entries.end());
  const auto [first, last] = by_text.equal_range(oldest->text);
  by_text.erase(std::find_if(first, last, [&](const auto& at) { return at.second == oldest; }));
  num_bytes -= oldest->num_bytes();
  entries.pop_back();
}

}  // namespace nanovllm
