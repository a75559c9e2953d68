#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// For tables with open addressing: a power of two with at least a third of the slots free, and the
/// shift that leaves a slot's bits of a 64-bit hash.
inline size_t table_size(size_t n) { return std::bit_ceil(std::max<size_t>(n + n / 2, 16)); }
inline int table_shift(size_t size) { return 64 - std::countr_zero(size); }

/// use(i) for each i, fetch(i) some turns before it: waiting for one cache miss after the other
/// would be most of loading.
template <class Fetch, class Use>
void for_each_fetched(size_t n, Fetch&& fetch, Use&& use) {
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < n + kAhead; ++i) {
    if (i < n) fetch(i);
    if (i >= kAhead) use(i - kAhead);
  }
}

/// Token ids by their bytes: open addressing.
class TokenTable {
 public:
  struct Span {
    uint32_t begin, len;  // bytes
  };
  /// The bytes of the token ids[i] are spans[i] of `bytes`. Of equal tokens the first counts.
  TokenTable(std::string bytes, const std::vector<Span>& spans, const std::vector<int32_t>& ids);
  TokenTable() : TokenTable({}, {}, {}) {}

  size_t size() const { return size_; }
  /// -1: no such token.
  int32_t find(std::string_view bytes) const;
  /// find() of each span of `bytes`, several times as fast.
  std::vector<int32_t> find_all(std::string_view bytes, const std::vector<Span>& spans) const;

 private:
  struct Slot {
    uint32_t hash;
    int32_t id = -1;  // -1: free
    Span span;        // of bytes_
  };
  // The slot of the token, or the free one where it would be.
  size_t slot_of(std::string_view bytes, uint64_t hash) const;

  std::string bytes_;
  std::vector<Slot> slots_;
  int shift_;  // a hash's upper bits are the first slot to look at
  size_t size_ = 0, max_len_ = 0;
};

}  // namespace nanovllm
