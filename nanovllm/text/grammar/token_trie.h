#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/text/grammar/language/expressions.h"
#include "nanovllm/text/tokenizer/detokenizer.h"

namespace nanovllm::grammar {

/// A set of token ids: bit id % 32 of word id / 32.
using TokenBits = std::vector<int32_t>;

inline void set_token(std::span<int32_t> bits, int32_t id) {
  if (static_cast<uint32_t>(id) / 32 >= bits.size()) return;
  bits[static_cast<uint32_t>(id) / 32] |=
      static_cast<int32_t>(1U << (static_cast<uint32_t>(id) % 32));
}

/// The tokens of a vocabulary as a tree of their bytes, so that a walk tests what many tokens begin
/// with once. Special tokens and the end tokens are not part of it: no answer spells them.
class TokenTrie {
 public:
  /// A node before its descendants, children in the order of their bytes. The root is node 0.
  struct Node {
    uint32_t num_nodes;  // with its descendants
    int32_t token;       // -1: none ends here
    uint8_t byte;        // that leads here
  };
  struct Edge {
    uint32_t parent, child;
  };
  /// What a walk of the whole tree found for an expression, which is the same in every grammar.
  struct Walk {
    /// For each node: how often `part` has begun on the way to it, times two, plus 1 if one has
    /// just ended; kDead if the way is none. An expression that is not counted has begun once.
    std::vector<uint16_t> nodes;
    std::vector<uint16_t> tokens;  ///< how often `part` has begun in each token; kDead: not one
    TokenBits all;                 ///< the tokens that are not dead
    uint16_t max = 0;              ///< the largest of `tokens`
    bool counted = false;
    static constexpr uint16_t kDead = 0xFFFF;
  };

  /// Ids from `vocab_size` on are no tokens of the model.
  TokenTrie(const TokenTexts& texts, std::span<const int32_t> end_ids, int64_t vocab_size);

  size_t num_tokens() const { return same_.size(); }
  std::span<const int32_t> end_ids() const { return end_ids_; }
  std::span<const Node> nodes() const { return nodes_; }
  /// The edges of a byte.
  std::span<const Edge> edges(uint8_t byte) const { return edges_[byte]; }
  /// Adds the tokens that end at a node; several may have the same text.
  void add(std::span<int32_t> bits, const Node& node) const {
    for (int32_t id = node.token; id >= 0; id = same_[static_cast<size_t>(id)]) set_token(bits, id);
  }
  /// The bytes of a token; empty if it cannot be in an answer.
  std::string_view text(int32_t id) const;
  int32_t next_same(int32_t id) const { return same_[static_cast<size_t>(id)]; }

  /// The walk for `part`, repeated as often as you like if `part` is prefix-free and `repeated`.
  /// Thread-safe for different `e`; walks are kept for other grammars.
  std::shared_ptr<const Walk> walk(Expressions& e, Expr part, bool repeated) const;

 private:
  static constexpr size_t kMaxWalks = 32;  // each takes a megabyte
  Walk compute_walk(Expressions& e, Expr part, bool counted) const;

  std::vector<Node> nodes_;
  std::array<std::vector<Edge>, 256> edges_;
  std::vector<int32_t> same_;          // [tokens]: another token with the same text, or -1
  std::vector<uint32_t> text_begins_;  // [tokens + 1]: in bytes_
  std::string bytes_;
  std::vector<int32_t> end_ids_;
  mutable std::mutex mutex_;
  using NamedWalk = std::pair<std::string, std::shared_ptr<const Walk>>;
  mutable std::list<NamedWalk> walks_;  // by Expressions::name(), the last used first
};

}  // namespace nanovllm::grammar
