#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "nanovllm/text/constraint.h"
#include "nanovllm/text/grammar/language/expressions.h"
#include "nanovllm/text/grammar/token_trie.h"

namespace nanovllm::grammar {

class Matcher;

/// A language for the answers of one vocabulary: which tokens may come next in each of its states.
/// All answers that are held to it share its states and masks. Thread-safe.
///
/// The tokens for a state are found by walking the trie with derivatives. Within a JSON string
/// nearly every token is allowed, and such a walk would take milliseconds. So where a walk gets
/// long, the state is taken as a sequence of a first part and a rest:
///
///   - The tokens that stay within the first part do not depend on the rest. They are found once
///     for a vocabulary (TokenTrie::Walk), whichever grammar, property or nesting they stand in. If
///     the part is a repetition, as the characters of a string are, the walk counts them, so that
///     one serves all lengths.
///   - The tokens that leave the first part go on with a byte that the rest begins with. Only the
///     edges of such a byte, which is mostly a quote, are walked.
///   - A first part that excludes some texts, as the names of further members exclude those that a
///     schema has, differs from the one that excludes none only on the way to these texts.
class Grammar {
 public:
  static constexpr size_t kMaxSteps = 4000;  // about 20 us

  /// `start` is what e.prepare() returned; not kNothing. A walk with more than `max_steps` is done
  /// in parts.
  Grammar(std::unique_ptr<Expressions> e, Expr start, std::shared_ptr<const TokenTrie> trie,
          size_t max_steps = kMaxSteps);

  const TokenTrie& trie() const { return *trie_; }
  size_t num_bytes();

 private:
  friend class Matcher;
  struct Mask {
    TokenBits bits;            // all tokens, or
    std::vector<int32_t> ids;  // those of a short list
  };

  std::shared_ptr<const Mask> mask(Expr state);
  void compute(Expr state, TokenBits& bits);
  /// Adds the tokens of the nodes below `node` that the state allows. Returns false, with some of
  /// them, if this takes more than `max_steps`.
  bool add_below(uint32_t node, Expr state, TokenBits& bits, size_t max_steps);
  void add_in_parts(Expr state, TokenBits& bits);
  bool find_exceptions(Expr first, Expr without, std::unordered_map<uint32_t, Expr>& states);
  const TokenTrie::Walk* walk_of(Expr part, bool repeated);
  /// Forgets masks and states of long ago if they take much memory.
  void bound_memory();

  std::mutex mutex_;
  std::unique_ptr<Expressions> e_;
  Expr start_;
  std::shared_ptr<const TokenTrie> trie_;
  size_t max_steps_;
  std::unordered_map<Expr, std::shared_ptr<const Mask>> masks_;
  size_t mask_bytes_ = 0, prepared_bytes_;
  std::unordered_map<Expr, std::shared_ptr<const TokenTrie::Walk>> walks_;  // by part
  std::unordered_set<Matcher*> matchers_;
};

/// Holds one answer to a grammar. Different matchers of a grammar may be used at once.
class Matcher : public Constraint {
 public:
  explicit Matcher(std::shared_ptr<Grammar> grammar);
  Matcher(const Matcher& other);
  Matcher& operator=(const Matcher&) = delete;
  ~Matcher() override;

  /// A language that takes too much memory or time for one of its states allows nothing there.
  void accept(int32_t id) override;
  void fill(std::span<int32_t> bits) const override;
  bool is_done() const override { return ended_ || state_ == Expr::kEmpty; }
  /// Appends text that need not be whole tokens.
  void accept_text(std::string_view text);
  /// Whether a token that is not allowed was accepted.
  bool has_failed() const { return state_ == Expr::kNothing; }
  /// Whether the answer may end here.
  bool may_end() const;

 private:
  friend class Grammar;
  std::shared_ptr<Grammar> grammar_;
  Expr state_;
  bool ended_ = false;
};

}  // namespace nanovllm::grammar
