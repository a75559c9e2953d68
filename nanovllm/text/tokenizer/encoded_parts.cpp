#include "nanovllm/text/tokenizer/encoded_parts.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace nanovllm {

EncodedParts::EncodedParts(size_t max_bytes) : max_bytes_(max_bytes), sets_(kNumSets) {}

bool EncodedParts::find(const Key& key, std::vector<int32_t>& ids) {
  if (key.text.size() < kLeastBytes) return false;
  const std::lock_guard lock(mutex_);
  for (Entry& entry : set_of(key)) {
    if (!entry.is(key)) continue;
    entry.last_use = ++num_uses_;
    ids.insert(ids.end(), entry.ids.begin(), entry.ids.end());
    return true;
  }
  return false;
}

void EncodedParts::add(const Key& key, std::span<const int32_t> ids) {
  if (key.text.size() < kLeastBytes) return;
  Entry added = {.owner = std::string(key.owner),
                 .text = std::string(key.text),
                 .at_start = key.at_start,
                 .ids = {ids.begin(), ids.end()}};
  if (added.num_bytes() > max_bytes_ / 4) return;
  const std::lock_guard lock(mutex_);
  Set& set = set_of(key);
  added.last_use = ++num_uses_;
  // Two threads may have encoded the same part at the same time.
  const auto same = std::ranges::find_if(set, [&](const Entry& entry) { return entry.is(key); });
  replace(same != set.end() ? *same : *std::ranges::min_element(set, {}, &Entry::last_use),
          std::move(added));
  // The sets have the order of hashes, so this frees entries at random; the ones just added are
  // replaced last.
  for (; num_bytes_ > max_bytes_; hand_ = (hand_ + 1) % kNumSets) {
    if (&sets_[hand_] == &set) continue;
    for (Entry& entry : sets_[hand_]) replace(entry, {});
  }
}

size_t EncodedParts::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

bool EncodedParts::Entry::is(const Key& key) const {
  return last_use != 0 && at_start == key.at_start && owner == key.owner && text == key.text;
}

size_t EncodedParts::Entry::num_bytes() const {
  return owner.size() + text.size() + ids.size() * sizeof(int32_t);
}

EncodedParts::Set& EncodedParts::set_of(const Key& key) {
  return sets_[std::hash<std::string_view>()(key.text) % kNumSets];
}

void EncodedParts::replace(Entry& entry, Entry by) {
  num_bytes_ += by.num_bytes();
  num_bytes_ -= entry.num_bytes();
  entry = std::move(by);
}

}  // namespace nanovllm
