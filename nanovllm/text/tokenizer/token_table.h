#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/tokenizer/flat_map.h"

namespace nanovllm {

/// Finds token ids by the tokens' bytes.
class TokenTable {
 public:
  /// If tokens are equal, the first one is found.
  TokenTable(const std::vector<std::string_view>& tokens, const std::vector<int32_t>& ids);

  size_t size() const { return size_; }
  /// The id of the token; -1 if there is none.
  int32_t find(std::string_view token) const;
  /// find() for each of the tokens, several times as fast.
  std::vector<int32_t> find_all(const std::vector<std::string_view>& tokens) const;

 private:
  int32_t find(std::string_view token, uint64_t hash) const;

  FlatMap places_;     // by a hash of the token: id << 32 | where the token is in bytes_
  std::string bytes_;  // each token after its length, which has 32 bits
  size_t size_ = 0, max_len_ = 0;
};

}  // namespace nanovllm
