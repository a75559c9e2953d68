#include "nanovllm/text/grammar/token_masks.h"

#include <algorithm>
#include <limits>

#include "nanovllm/base/to_size.h"

namespace nanovllm::grammar {

namespace {

constexpr size_t kMaxLong = 4;   // alternatives that are walked in parts
constexpr size_t kMaxWalks = 8;  // that a grammar keeps besides those that the trie keeps
constexpr size_t kMaxIds = 500;  // of a mask that is kept as a list
constexpr size_t kMaxMaskBytes = 16 << 20, kMaxStateBytes = 32 << 20;
constexpr size_t kUnlimitedSteps = std::numeric_limits<size_t>::max();

}  // namespace

Grammar::Grammar(std::unique_ptr<Expressions> e, Expr start, std::shared_ptr<const TokenTrie> trie,
                 size_t max_steps)
    : e_(std::move(e)),
      start_(start),
      trie_(std::move(trie)),
      max_steps_(max_steps),
      prepared_bytes_(e_->num_bytes()) {}

bool Grammar::add_below(uint32_t node, Expr state, TokenBits& bits, size_t max_steps) {
  const auto nodes = trie_->nodes();
  struct Level {
    Expr state;
    uint32_t end;
  };
  std::vector<Level> path{{state, node + nodes[node].num_nodes}};
  size_t steps = 0;
  for (uint32_t i = node + 1, end = path[0].end; i < end;) {
    while (i == path.back().end) path.pop_back();
    const Expr next = e_->derive(path.back().state, nodes[i].byte);
    if (next == Expr::kNothing) {
      i += nodes[i].num_nodes;
      continue;
    }
    if (++steps > max_steps) return false;
    trie_->add(bits, nodes[i]);
    if (nodes[i].num_nodes > 1) path.push_back({next, i + nodes[i].num_nodes});
    ++i;
  }
  return true;
}

void Grammar::compute(Expr state, TokenBits& bits) {
  if (add_below(0, state, bits, max_steps_)) return;
  std::ranges::fill(bits, 0);
  std::vector<Expr> long_ones;  // alternatives whose walks are long
  const auto add = [&](Expr alternative) {
    if (long_ones.size() <= kMaxLong && !add_below(0, alternative, bits, max_steps_))
      long_ones.push_back(alternative);
  };
  const auto alternatives = e_->alternatives(state);
  for (const Expr alternative : std::vector(alternatives.begin(), alternatives.end())) {
    const auto [first, rest] = e_->split(alternative);
    const auto firsts = e_->alternatives(first);
    if (firsts.size() == 1) add(alternative);
    else
      for (const Expr part : std::vector(firsts.begin(), firsts.end()))
        add(e_->sequence(part, rest));
  }
  // One walk for all of them is shorter than one for each of many.
  if (long_ones.size() > kMaxLong) add_below(0, state, bits, kUnlimitedSteps);
  else
    for (const Expr alternative : long_ones) add_in_parts(alternative, bits);
}

void Grammar::add_in_parts(Expr state, TokenBits& bits) {
  const auto [first, rest] = e_->split(state);
  // The edges that may lead out of the first part. If they are many, an ordinary walk is shorter.
  const Bytes leaving = e_->first_bytes(rest);
  size_t num_edges = 0;
  for (size_t byte = 0; byte < 256; ++byte)
    if (leaving[byte]) num_edges += trie_->edges(static_cast<uint8_t>(byte)).size();
  if (num_edges > trie_->nodes().size() / 8) {
    add_below(0, state, bits, kUnlimitedSteps);
    return;
  }
  Expr simple = first;
  std::unordered_map<uint32_t, Expr> exceptions;  // nodes at which `first` is another state
  if (const auto difference = e_->difference(first);
      difference && find_exceptions(first, difference->without, exceptions))
    simple = difference->from;
  uint32_t min = 0, max = kUnlimited;
  const TokenTrie::Walk* walk = nullptr;
  if (const auto repetition = e_->repetition(simple)) {
    walk = walk_of(repetition->part, true);
    if (walk != nullptr) std::tie(min, max) = std::pair(repetition->min, repetition->max);
  }
  if (walk == nullptr) walk = walk_of(simple, false);
  if (walk->max <= max) {
    for (size_t i = 0; i < bits.size(); ++i) bits[i] |= walk->all[i];
  } else {
    for (size_t i = 0; i < walk->tokens.size(); i += 32) {
      uint32_t word = 0;
      for (size_t k = i; k < std::min(i + 32, walk->tokens.size()); ++k)
        word |= (walk->tokens[k] <= max ? 1U : 0U) << (k - i);
      bits[i / 32] |= static_cast<int32_t>(word);
    }
  }
  const auto ends_at = [&](uint32_t node) {
    if (const auto exception = exceptions.find(node); exception != exceptions.end())
      return e_->is_nullable(exception->second);
    const uint16_t begun = walk->nodes[node];
    if (begun == TokenTrie::Walk::kDead || begun % 2 == 0) return false;
    return !walk->counted || (begun / 2U >= min && begun / 2U <= max);
  };
  for (size_t byte = 0; byte < 256; ++byte) {
    if (!leaving[byte]) continue;
    const Expr next = e_->derive(rest, static_cast<uint8_t>(byte));
    for (const auto& [parent, child] : trie_->edges(static_cast<uint8_t>(byte))) {
      if (!ends_at(parent)) continue;
      trie_->add(bits, trie_->nodes()[child]);
      add_below(child, next, bits, kUnlimitedSteps);
    }
  }
}

/// Finds the states of `first` at the nodes on the way to the texts that it excludes. Returns false
/// if they are many, or if a node allows no text at all.
bool Grammar::find_exceptions(Expr first, Expr without,
                              std::unordered_map<uint32_t, Expr>& states) {
  const auto nodes = trie_->nodes();
  struct Level {
    Expr state, without;
    uint32_t end;
  };
  std::vector<Level> path{{first, without, nodes[0].num_nodes}};
  states[0] = first;
  for (uint32_t i = 1; i < nodes.size();) {
    while (i == path.back().end) path.pop_back();
    const Expr next = e_->derive(path.back().without, nodes[i].byte);
    const Expr state = e_->derive(path.back().state, nodes[i].byte);
    if (next == Expr::kNothing) {
      i += nodes[i].num_nodes;
      continue;
    }
    if (state == Expr::kNothing || states.size() > kMaxSteps) return false;
    states[i] = state;
    if (nodes[i].num_nodes > 1) path.push_back({state, next, i + nodes[i].num_nodes});
    ++i;
  }
  return true;
}

const TokenTrie::Walk* Grammar::walk_of(Expr part, bool repeated) {
  const auto key = static_cast<Expr>(static_cast<uint32_t>(part) * 2 + (repeated ? 1 : 0));
  if (walks_.size() >= kMaxWalks && !walks_.contains(key)) walks_.clear();
  const auto [at, added] = walks_.try_emplace(key);
  if (added) at->second = trie_->walk(*e_, part, repeated);
  return at->second.get();
}

std::shared_ptr<const Grammar::Mask> Grammar::mask(Expr state) {
  if (const auto known = masks_.find(state); known != masks_.end()) return known->second;
  auto mask = std::make_shared<Mask>();
  mask->bits.resize((trie_->num_tokens() + 31) / 32);
  compute(state, mask->bits);
  size_t num_tokens = 0;
  for (const int32_t word : mask->bits)
    num_tokens += static_cast<size_t>(__builtin_popcount(static_cast<uint32_t>(word)));
  if (num_tokens <= kMaxIds) {
    for (size_t i = 0; i < mask->bits.size(); ++i)
      for (auto word = static_cast<uint32_t>(mask->bits[i]); word != 0; word &= word - 1)
        mask->ids.push_back(static_cast<int32_t>(i * 32) + __builtin_ctz(word));
    mask->bits = {};
  }
  mask_bytes_ += sizeof(Mask) + (mask->bits.size() + mask->ids.size()) * sizeof(int32_t);
  masks_.emplace(state, mask);
  return mask;
}

size_t Grammar::num_bytes() {
  const std::lock_guard lock(mutex_);
  return e_->num_bytes() + mask_bytes_;
}

void Grammar::bound_memory() {
  const size_t room = e_->max_bytes() - std::min(prepared_bytes_, e_->max_bytes());
  const bool many_states = e_->num_bytes() > prepared_bytes_ + std::min(kMaxStateBytes, room / 2);
  if (mask_bytes_ > kMaxMaskBytes || many_states) {
    masks_.clear();
    mask_bytes_ = 0;
  }
  if (!many_states) return;
  std::vector<Expr> states;
  for (const Matcher* matcher : matchers_) states.push_back(matcher->state_);
  e_->forget_all_but(states);
  size_t i = 0;
  for (Matcher* matcher : matchers_) matcher->state_ = states[i++];
  walks_.clear();
}

Matcher::Matcher(std::shared_ptr<Grammar> grammar)
    : grammar_(std::move(grammar)), state_(grammar_->start_) {
  const std::lock_guard lock(grammar_->mutex_);
  grammar_->matchers_.insert(this);
}

Matcher::Matcher(const Matcher& other) : Constraint(other), grammar_(other.grammar_) {
  const std::lock_guard lock(grammar_->mutex_);
  state_ = other.state_;
  ended_ = other.ended_;
  grammar_->matchers_.insert(this);
}

Matcher::~Matcher() {
  const std::lock_guard lock(grammar_->mutex_);
  grammar_->matchers_.erase(this);
}

void Matcher::accept(int32_t id) {
  const TokenTrie& trie = grammar_->trie();
  if (std::ranges::find(trie.end_ids(), id) != trie.end_ids().end()) ended_ = true;
  else if (const std::string_view text = trie.text(id); !text.empty()) accept_text(text);
  else state_ = Expr::kNothing;
}

void Matcher::accept_text(std::string_view text) {
  if (ended_) return;
  const std::lock_guard lock(grammar_->mutex_);
  try {
    for (const char byte : text) state_ = grammar_->e_->derive(state_, static_cast<uint8_t>(byte));
    grammar_->bound_memory();
  } catch (const std::exception&) {
    state_ = Expr::kNothing;
  }
}

void Matcher::fill(std::span<int32_t> bits) const {
  std::shared_ptr<const Grammar::Mask> mask;
  bool may_end = ended_;
  if (!ended_) {
    const std::lock_guard lock(grammar_->mutex_);
    try {
      grammar_->bound_memory();
      mask = grammar_->mask(state_);
      may_end = grammar_->e_->is_nullable(state_);
    } catch (const std::exception&) {  // no token is allowed then
    }
  }
  auto rest = bits.begin();
  if (mask != nullptr && !mask->bits.empty())
    rest = std::ranges::copy_n(mask->bits.begin(),
                               std::min(std::ssize(mask->bits), std::ssize(bits)), rest)
               .out;
  std::fill(rest, bits.end(), 0);
  if (mask != nullptr)
    for (const int32_t id : mask->ids) set_token(bits, id);
  if (may_end)
    for (const int32_t id : grammar_->trie().end_ids()) set_token(bits, id);
}

bool Matcher::may_end() const {
  const std::lock_guard lock(grammar_->mutex_);
  return ended_ || grammar_->e_->is_nullable(state_);
}

}  // namespace nanovllm::grammar
