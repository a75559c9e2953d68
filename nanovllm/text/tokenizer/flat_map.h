#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nanovllm {

/// A map from 64-bit keys to 64-bit values for the tokenizer's millions of lookups: open addressing
/// in one array, of which at least a third is free.
class FlatMap {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  /// Makes room for `max_keys` keys.
  explicit FlatMap(size_t max_keys)
      : slots_(std::bit_ceil(max_keys + max_keys / 2 + 16)),
        shift_(64 - std::countr_zero(slots_.size())) {}

  static uint64_t pair(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  /// The value of the key; kNone if there is no such key.
  uint64_t find(uint64_t key) const { return slots_[slot_of(key)].value; }
  /// The value of the key, which is added with the value kNone if it is new.
  uint64_t& operator[](uint64_t key) {
    Slot& slot = slots_[slot_of(key)];
    slot.key = key;
    return slot.value;
  }
  /// Calls use(i) for each keys[i]. The slots are prefetched, because waiting for one cache miss
  /// after the other would take most of the time of loading.
  template <class Use>
  void for_each(const std::vector<uint64_t>& keys, Use&& use) const {
    constexpr size_t kDistance = 16;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (i + kDistance < keys.size()) __builtin_prefetch(&slots_[first_slot(keys[i + kDistance])]);
      use(i);
    }
  }

 private:
  struct Slot {
    uint64_t key = kNone, value = kNone;
  };
  // Fibonacci hashing (Knuth, volume 3, section 6.4).
  size_t first_slot(uint64_t key) const { return key * 0x9E3779B97F4A7C15 >> shift_; }
  size_t slot_of(uint64_t key) const {
    size_t i = first_slot(key);
    while (slots_[i].key != key && slots_[i].key != kNone) i = (i + 1) & (slots_.size() - 1);
    return i;
  }

  std::vector<Slot> slots_;
  int shift_;
};

}  // namespace nanovllm
