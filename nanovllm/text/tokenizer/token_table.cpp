#include "nanovllm/text/tokenizer/token_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace nanovllm {

namespace {

uint64_t hash_of(std::string_view token) { return XXH3_64bits(token.data(), token.size()); }

std::vector<uint64_t> hashes_of(const std::vector<std::string_view>& tokens) {
  std::vector<uint64_t> hashes(tokens.size());
  std::ranges::transform(tokens, hashes.begin(), hash_of);
  return hashes;
}

}  // namespace

TokenTable::TokenTable(const std::vector<std::string_view>& tokens, const std::vector<int32_t>& ids)
    : places_(tokens.size()) {
  // Tokens with the same hash count as equal. By chance this happens in one of a billion
  // vocabularies of 150,000 tokens.
  const std::vector<uint64_t> hashes = hashes_of(tokens);
  places_.for_each(hashes, [&](size_t i) {
    uint64_t& place = places_[hashes[i]];
    if (place != FlatMap::kNone) return;
    place = FlatMap::pair(static_cast<uint32_t>(ids[i]), static_cast<uint32_t>(bytes_.size()));
    const auto len = static_cast<uint32_t>(tokens[i].size());
    bytes_.append(reinterpret_cast<const char*>(&len), sizeof len);
    bytes_ += tokens[i];
    max_len_ = std::max<size_t>(max_len_, len);
    ++size_;
  });
}

int32_t TokenTable::find(std::string_view token) const {
  return token.size() > max_len_ ? -1 : find(token, hash_of(token));
}

int32_t TokenTable::find(std::string_view token, uint64_t hash) const {
  const uint64_t place = places_.find(hash);
  if (place == FlatMap::kNone) return -1;
  const char* const stored = bytes_.data() + static_cast<uint32_t>(place);
  uint32_t len;
  std::memcpy(&len, stored, sizeof len);
  // Compare the bytes too, because a text can be constructed to have the hash of another token.
  const bool same = len == token.size() && std::memcmp(stored + sizeof len, token.data(), len) == 0;
  return same ? static_cast<int32_t>(place >> 32) : -1;
}

std::vector<int32_t> TokenTable::find_all(const std::vector<std::string_view>& tokens) const {
  std::vector<int32_t> ids(tokens.size());
  const std::vector<uint64_t> hashes = hashes_of(tokens);
  places_.for_each(hashes, [&](size_t i) { ids[i] = find(tokens[i], hashes[i]); });
  return ids;
}

}  // namespace nanovllm
