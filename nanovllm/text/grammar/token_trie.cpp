#include "nanovllm/text/grammar/token_trie.h"

#include <algorithm>

#include "nanovllm/base/to_size.h"

namespace nanovllm::grammar {

TokenTrie::TokenTrie(const TokenTexts& texts, std::span<const int32_t> end_ids, int64_t vocab_size)
    : same_(to_size(std::min<int64_t>(texts.size(), vocab_size)), -1) {
  for (const int32_t id : end_ids)
    if (id >= 0 && id < vocab_size) end_ids_.push_back(id);
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  for (int32_t id = 0; id < static_cast<int32_t>(same_.size()); ++id) {
    text_begins_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (texts.contains(id) && !texts.is_special(id) && !texts.text(id).empty() &&
        std::ranges::find(end_ids_, id) == end_ids_.end()) {
      tokens.emplace_back(texts.text(id), id);
      bytes_ += texts.text(id);
    }
  }
  text_begins_.push_back(static_cast<uint32_t>(bytes_.size()));
  // Sorted texts are the nodes in their order: each adds those after what it shares with the last.
  std::ranges::sort(tokens);
  std::vector<uint32_t> path{0};  // the nodes of the last text
  nodes_.push_back({.num_nodes = 0, .token = -1, .byte = 0});
  const auto close = [&](size_t depth) {
    for (; path.size() > depth; path.pop_back())
      nodes_[path.back()].num_nodes = static_cast<uint32_t>(nodes_.size()) - path.back();
  };
  std::string_view last;
  for (const auto& [text, id] : tokens) {
    const auto shared = static_cast<size_t>(std::ranges::mismatch(last, text).in1 - last.begin());
    close(shared + 1);
    for (size_t i = shared; i < text.size(); ++i) {
      const auto byte = static_cast<uint8_t>(text[i]);
      const auto child = static_cast<uint32_t>(nodes_.size());
      edges_[byte].push_back({path.back(), child});
      path.push_back(child);
      nodes_.push_back({.num_nodes = 0, .token = -1, .byte = byte});
    }
    int32_t& first = nodes_[path.back()].token;
    same_[to_size(id)] = first;
    first = id;
    last = text;
  }
  close(0);
}

std::string_view TokenTrie::text(int32_t id) const {
  if (id < 0 || to_size(id) >= same_.size()) return {};
  const uint32_t begin = text_begins_[to_size(id)];
  return std::string_view(bytes_).substr(begin, text_begins_[to_size(id) + 1] - begin);
}

std::shared_ptr<const TokenTrie::Walk> TokenTrie::walk(Expressions& e, Expr part,
                                                       bool repeated) const {
  if (repeated && !e.is_prefix_free(part)) return nullptr;
  std::string name = e.name(part);
  if (!name.empty()) {
    name += repeated ? '*' : ' ';
    const std::lock_guard lock(mutex_);
    if (const auto known = std::ranges::find(walks_, name, &NamedWalk::first);
        known != walks_.end()) {
      walks_.splice(walks_.begin(), walks_, known);
      return known->second;
    }
  }
  auto walk = std::make_shared<const Walk>(compute_walk(e, part, repeated));
  if (!name.empty()) {
    const std::lock_guard lock(mutex_);
    walks_.emplace_front(std::move(name), walk);
    if (walks_.size() > kMaxWalks) walks_.pop_back();
  }
  return walk;
}

TokenTrie::Walk TokenTrie::compute_walk(Expressions& e, Expr part, bool counted) const {
  Walk walk{.nodes = std::vector(nodes_.size(), Walk::kDead),
            .tokens = std::vector(same_.size(), Walk::kDead),
            .all = TokenBits((same_.size() + 31) / 32),
            .counted = counted};
  struct Level {
    Expr state;
    uint16_t begun;
    uint32_t end;  // of the node's descendants
  };
  std::vector<Level> path{{.state = counted ? Expr::kEmpty : part,
                           .begun = static_cast<uint16_t>(counted ? 0 : 1),
                           .end = static_cast<uint32_t>(nodes_.size())}};
  walk.nodes[0] = static_cast<uint16_t>(path[0].begun * 2 + (e.is_nullable(path[0].state) ? 1 : 0));
  for (uint32_t i = 1; i < nodes_.size();) {
    while (i == path.back().end) path.pop_back();
    const Node& node = nodes_[i];
    const auto [before, begun_before, end] = path.back();
    const bool begins = counted && before == Expr::kEmpty;
    const Expr state = e.derive(begins ? part : before, node.byte);
    if (state == Expr::kNothing) {
      i += node.num_nodes;
      continue;
    }
    const auto begun = static_cast<uint16_t>(begun_before + (begins ? 1 : 0));
    walk.nodes[i] = static_cast<uint16_t>(begun * 2 + (e.is_nullable(state) ? 1 : 0));
    for (int32_t id = node.token; id >= 0; id = next_same(id)) {
      walk.tokens[to_size(id)] = begun;
      walk.max = std::max(walk.max, begun);
    }
    add(walk.all, node);
    if (node.num_nodes > 1)
      path.push_back({.state = state, .begun = begun, .end = i + node.num_nodes});
    ++i;
  }
  return walk;
}

}  // namespace nanovllm::grammar
