#include "nanovllm/text/tokenizer/token_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <utility>

namespace nanovllm {

namespace {

uint64_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace

TokenTable::TokenTable(std::string bytes, const std::vector<Span>& spans,
                       const std::vector<int32_t>& ids)
    : bytes_(std::move(bytes)),
      slots_(table_size(spans.size())),
      shift_(table_shift(slots_.size())) {
  const auto text = [&](size_t i) {
    return std::string_view(bytes_).substr(spans[i].begin, spans[i].len);
  };
  const auto fetch = [&](size_t i) { __builtin_prefetch(&slots_[hash_of(text(i)) >> shift_]); };
  for_each_fetched(spans.size(), fetch, [&](size_t i) {
    const uint64_t hash = hash_of(text(i));
    Slot& slot = slots_[slot_of(text(i), hash)];
    if (slot.id >= 0) return;
    slot = {static_cast<uint32_t>(hash), ids[i], spans[i]};
    max_len_ = std::max<size_t>(max_len_, spans[i].len);
    ++size_;
  });
}

size_t TokenTable::slot_of(std::string_view bytes, uint64_t hash) const {
  size_t i = hash >> shift_;
  for (; slots_[i].id >= 0; i = (i + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[i];
    if (slot.hash == static_cast<uint32_t>(hash) && slot.span.len == bytes.size() &&
        std::memcmp(bytes_.data() + slot.span.begin, bytes.data(), bytes.size()) == 0)
      break;
  }
  return i;
}

int32_t TokenTable::find(std::string_view bytes) const {
  return bytes.size() > max_len_ ? -1 : slots_[slot_of(bytes, hash_of(bytes))].id;
}

std::vector<int32_t> TokenTable::find_all(std::string_view bytes,
                                          const std::vector<Span>& spans) const {
  std::vector<int32_t> ids(spans.size());
  const auto text = [&](size_t i) { return bytes.substr(spans[i].begin, spans[i].len); };
  const auto fetch = [&](size_t i) { __builtin_prefetch(&slots_[hash_of(text(i)) >> shift_]); };
  for_each_fetched(spans.size(), fetch, [&](size_t i) { ids[i] = find(text(i)); });
  return ids;
}

}  // namespace nanovllm
