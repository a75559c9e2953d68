#include "nanovllm/text/grammar/language/expressions.h"

#include <algorithm>
#include <ranges>

#include "nanovllm/base/check.h"
#include "nanovllm/base/error.h"

namespace nanovllm::grammar {

namespace {

// The most alternatives that derive() looks at for a byte, which takes about 50 ms.
constexpr size_t kMaxAlternatives = 500'000;
// Alternatives that begin alike are joined at most this far and this often at once. derive() goes
// on with it.
constexpr uint32_t kMaxJoinDepth = 100, kMaxJoins = 1000;

uint32_t index(Expr e) { return static_cast<uint32_t>(e); }

}  // namespace

Expressions::Expressions(size_t max_bytes) : max_bytes_(max_bytes), places_(1024) {
  intern({.kind = Kind::kNothing});
  intern({.kind = Kind::kEmpty, .nullable = true});
  intern({.kind = Kind::kComplement, .nullable = true, .a = index(Expr::kNothing)});
}

uint32_t& Expressions::place_of(const Node& node, std::span<const Expr> list) {
  uint64_t hash = static_cast<uint64_t>(node.kind);
  const auto add = [&](uint32_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 29;
  };
  if (node.kind != Kind::kAnyOf) add(node.a);  // of alternatives: where the list is
  add(node.b);
  add(node.c);
  for (const Expr e : list) add(index(e));
  const size_t mask = places_.size() - 1;
  for (size_t i = hash & mask;; i = (i + 1) & mask) {
    if (places_[i] == 0) return places_[i];
    const Node& found = nodes_[places_[i] - 1];
    if (found.kind != node.kind || found.b != node.b || found.c != node.c) continue;
    if (node.kind == Kind::kAnyOf ? std::ranges::equal(this->list(found), list) : found.a == node.a)
      return places_[i];
  }
}

Expr Expressions::intern(const Node& node, std::span<const Expr> list) {
  uint32_t& place = place_of(node, list);
  if (place != 0) return static_cast<Expr>(place - 1);
  check_memory();
  nodes_.push_back(node);
  if (node.kind == Kind::kAnyOf) {
    nodes_.back().a = static_cast<uint32_t>(alternatives_.size());
    alternatives_.insert(alternatives_.end(), list.begin(), list.end());
  }
  if (!representatives_.empty()) {
    row_of_.push_back(0);
    viable_.push_back(Viable::kUnknown);
  }
  const auto id = static_cast<uint32_t>(nodes_.size());
  place = id;
  if (nodes_.size() * 2 > places_.size()) rebuild_places(places_.size() * 2);
  return static_cast<Expr>(id - 1);
}

void Expressions::rebuild_places(size_t num_places) {
  while (num_places < nodes_.size() * 2) num_places *= 2;
  places_.assign(num_places, 0);
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    const Node& n = nodes_[i];
    place_of(n, n.kind == Kind::kAnyOf ? list(n) : std::span<const Expr>()) = i + 1;
  }
}

size_t Expressions::num_bytes() const {
  return nodes_.size() * (sizeof(Node) + sizeof(uint32_t) + sizeof(Viable)) +
         places_.size() * sizeof(uint32_t) +
         (alternatives_.size() + derivatives_.size()) * sizeof(Expr) +
         sets_.size() * 3 * sizeof(Bytes) + rules_.size() * sizeof(Rule);
}

void Expressions::check_memory() const {
  if (num_bytes() > max_bytes_)
    throw UserError("it needs more than the " + std::to_string(max_bytes_ >> 20) +
                    " MiB that a grammar may take");
}

Expr Expressions::bytes(const Bytes& set) {
  if (set.none()) return Expr::kNothing;
  const auto [at, added] = set_ids_.try_emplace(set, static_cast<uint32_t>(sets_.size()));
  if (added) sets_.push_back(set);
  return intern({.kind = Kind::kBytes, .a = at->second});
}

Expr Expressions::byte_range(uint8_t first, uint8_t last) {
  Bytes set;
  for (size_t i = first; i <= last; ++i) set.set(i);
  return bytes(set);
}

Expr Expressions::text(std::string_view text) {
  Expr e = Expr::kEmpty;
  for (const char c : std::views::reverse(text)) {
    const auto byte = static_cast<uint8_t>(c);
    e = sequence(byte_range(byte, byte), e);
  }
  return e;
}

Expr Expressions::texts(std::span<const std::string> texts) {
  // Sorted texts with the same first byte stand together, so the alternatives become a tree.
  std::vector<std::string_view> sorted(texts.begin(), texts.end());
  std::ranges::sort(sorted);
  const auto tree = [this](auto&& self, std::span<std::string_view> part, size_t depth) -> Expr {
    if (part.size() == 1) return text(part[0].substr(depth));
    std::vector<Expr> branches;
    for (size_t i = 0; i < part.size();) {
      if (part[i].size() == depth) {
        branches.push_back(Expr::kEmpty);
        ++i;
        continue;
      }
      const size_t begin = i;
      while (i < part.size() && part[i].size() > depth && part[i][depth] == part[begin][depth]) ++i;
      // What all of them share is no branch.
      const std::string_view a = part[begin], b = part[i - 1];
      size_t shared = depth + 1;
      while (shared < std::min(a.size(), b.size()) && a[shared] == b[shared]) ++shared;
      const Expr rest = self(self, part.subspan(begin, i - begin), shared);
      branches.push_back(sequence(text(a.substr(depth, shared - depth)), rest));
    }
    return any_of(branches);
  };
  return sorted.empty() ? Expr::kNothing : tree(tree, sorted, 0);
}

Expr Expressions::sequence(Expr first, Expr then) {
  if (first == Expr::kNothing || then == Expr::kNothing) return Expr::kNothing;
  if (first == Expr::kEmpty) return then;
  if (then == Expr::kEmpty) return first;
  if (node(first).kind == Kind::kSequence) {
    std::vector<Expr> parts;
    for (; node(first).kind == Kind::kSequence; first = static_cast<Expr>(node(first).b))
      parts.push_back(static_cast<Expr>(node(first).a));
    then = sequence(first, then);
    for (const Expr part : std::views::reverse(parts)) then = sequence(part, then);
    return then;
  }
  // x* x* is x*. Ambiguous rules would make ever longer sequences of these.
  if (const Node& n = node(first);
      n.kind == Kind::kRepeat && n.b == 0 && n.c == kUnlimited && split(then).first == first)
    return then;
  return intern({.kind = Kind::kSequence,
                 .nullable = is_nullable(first) && is_nullable(then),
                 .has_rules = has_rules(first) || has_rules(then),
                 .a = index(first),
                 .b = index(then)});
}

Expr Expressions::sequence(std::initializer_list<Expr> parts) {
  Expr e = Expr::kEmpty;
  for (const Expr part : std::views::reverse(parts)) e = sequence(part, e);
  return e;
}

std::pair<Expr, Expr> Expressions::split(Expr e) const {
  const Node& n = node(e);
  if (n.kind != Kind::kSequence) return {e, Expr::kEmpty};
  return {static_cast<Expr>(n.a), static_cast<Expr>(n.b)};
}

std::span<const Expr> Expressions::alternatives(const Expr& e) const {
  const Node& n = node(e);
  return n.kind == Kind::kAnyOf ? list(n) : std::span(&e, 1);
}

Expr Expressions::any_of(const std::vector<Expr>& alternatives) {
  std::vector<std::pair<Expr, Expr>> sequences;  // first part and rest
  const auto add = [&](Expr e) {
    if (e != Expr::kNothing) sequences.push_back(split(e));
  };
  bool any = false;
  for (const Expr e : alternatives) {
    any |= e == Expr::kAny;
    if (node(e).kind == Kind::kAnyOf)
      for (const Expr part : list(node(e))) add(part);
    else add(e);
  }
  if (any) return Expr::kAny;
  num_joined_ += sequences.size();
  if (derive_depth_ > 0 && num_joined_ > kMaxAlternatives)
    throw UserError("it needs more than " + std::to_string(kMaxAlternatives) +
                    " alternatives to follow one byte");
  // x y | x z is x (y | z), and [a] z | [b] z is [ab] z.
  std::ranges::sort(sequences);
  const auto duplicates = std::ranges::unique(sequences);
  sequences.erase(duplicates.begin(), duplicates.end());
  std::vector<std::pair<Expr, Expr>> joined;  // rest and first part
  for (size_t i = 0; i < sequences.size();) {
    const Expr first = sequences[i].first;
    std::vector<Expr> rests;
    for (; i < sequences.size() && sequences[i].first == first; ++i)
      rests.push_back(sequences[i].second);
    if (join_depth_ == 0) num_joins_ = 0;
    if (rests.size() > 1 && join_depth_ < kMaxJoinDepth && num_joins_ < kMaxJoins) {
      ++join_depth_;
      ++num_joins_;
      joined.emplace_back(any_of(rests), first);
      --join_depth_;
    } else {
      for (const Expr rest : rests) joined.emplace_back(rest, first);
    }
  }
  std::ranges::sort(joined);
  std::vector<Expr> parts;
  for (size_t i = 0; i < joined.size();) {
    const auto [rest, first] = joined[i];
    if (node(first).kind != Kind::kBytes) {
      parts.push_back(sequence(first, rest));
      ++i;
      continue;
    }
    Bytes set;
    size_t next = i;
    for (; next < joined.size() && joined[next].first == rest; ++next)
      if (node(joined[next].second).kind == Kind::kBytes) set |= sets_[node(joined[next].second).a];
      else parts.push_back(sequence(joined[next].second, rest));
    parts.push_back(sequence(bytes(set), rest));
    i = next;
  }
  if (parts.empty()) return Expr::kNothing;
  if (parts.size() == 1) return parts[0];
  std::ranges::sort(parts);
  Node n{.kind = Kind::kAnyOf, .b = static_cast<uint32_t>(parts.size())};
  for (const Expr part : parts) {
    n.nullable |= is_nullable(part);
    n.has_rules |= has_rules(part);
  }
  return intern(n, parts);
}

Expr Expressions::repeat(Expr part, uint32_t min, uint32_t max) {
  if (max == 0 || part == Expr::kEmpty) return Expr::kEmpty;
  if (min > max) return Expr::kNothing;
  if (part == Expr::kNothing) return min == 0 ? Expr::kEmpty : Expr::kNothing;
  if (min == 1 && max == 1) return part;
  if (is_nullable(part)) min = 0;
  return intern({.kind = Kind::kRepeat,
                 .nullable = min == 0,
                 .has_rules = has_rules(part),
                 .a = index(part),
                 .b = min,
                 .c = max});
}

std::optional<Expressions::Repetition> Expressions::repetition(Expr e) const {
  const Node& n = node(e);
  if (n.kind != Kind::kRepeat) return std::nullopt;
  return Repetition{static_cast<Expr>(n.a), n.b, n.c};
}

std::optional<Expressions::Difference> Expressions::difference(Expr e) const {
  const Node& n = node(e);
  if (n.kind != Kind::kBoth) return std::nullopt;
  for (const auto& [from, not_in] : {std::pair(n.a, n.b), std::pair(n.b, n.a)})
    if (nodes_[not_in].kind == Kind::kComplement)
      return Difference{static_cast<Expr>(from), static_cast<Expr>(nodes_[not_in].a)};
  return std::nullopt;
}

Expr Expressions::both(Expr a, Expr b) {
  if (a > b) std::swap(a, b);
  if (a == b || b == Expr::kAny) return a;
  if (a == Expr::kAny) return b;
  if (a == Expr::kNothing) return a;
  if (a == Expr::kEmpty) return is_nullable(b) ? a : Expr::kNothing;
  check(!has_rules(a) && !has_rules(b), "an intersection of languages with rules");
  return intern({.kind = Kind::kBoth,
                 .nullable = is_nullable(a) && is_nullable(b),
                 .a = index(a),
                 .b = index(b)});
}

Expr Expressions::complement(Expr a) {
  check(!has_rules(a), "the complement of a language with rules");
  if (node(a).kind == Kind::kComplement) return static_cast<Expr>(node(a).a);
  return intern({.kind = Kind::kComplement, .nullable = !is_nullable(a), .a = index(a)});
}

Expr Expressions::multiple_of(uint32_t divisor, uint32_t scale) {
  check(divisor > 0 && scale <= 18, "multiple_of({}, {})", divisor, scale);
  for (uint8_t digit = '0'; digit <= '9'; ++digit) byte_range(digit, digit);  // different classes
  byte_range('.', '.');
  return intern({.kind = Kind::kMultiple, .nullable = true, .a = divisor, .c = scale});
}

Expr Expressions::new_rule(std::string name) {
  rules_.push_back({.name = std::move(name)});
  return intern(
      {.kind = Kind::kRule, .has_rules = true, .a = static_cast<uint32_t>(rules_.size()) - 1});
}

void Expressions::define(Expr rule, Expr body) {
  check(node(rule).kind == Kind::kRule, "only a rule can be defined");
  Rule& r = rules_[node(rule).a];
  check(!r.defined, "the rule {} is defined twice", r.name);
  r.body = body;
  r.defined = true;
}

std::string Expressions::name(Expr e) const {
  size_t max_nodes = 2000;
  return name(e, max_nodes);
}

std::string Expressions::name(Expr e, size_t& max_nodes) const {
  std::string text;
  const auto number = [](uint32_t value) { return std::to_string(value) + ","; };
  for (Expr rest = e; rest != Expr::kEmpty || text.empty();) {  // the parts of a sequence
    const auto [part, then] = split(rest);
    const Node& n = node(part);
    if (n.has_rules || max_nodes == 0) return {};
    --max_nodes;
    text += static_cast<char>('0' + static_cast<int>(n.kind));
    std::vector<std::string> parts;
    if (n.kind == Kind::kBytes) {
      const Bytes& set = sets_[n.a];
      for (uint32_t i = 0; i <= 256; ++i)  // where it begins and ends
        if ((i < 256 && set[i]) != (i > 0 && set[i - 1])) text += number(i);
    } else if (n.kind == Kind::kAnyOf) {
      for (const Expr alternative : list(n)) {
        parts.push_back(name(alternative, max_nodes));
        if (parts.back().empty()) return {};
      }
      std::ranges::sort(parts);  // their order here depends on what else was built
    } else {
      if (has_part_a(n)) parts.push_back(name(static_cast<Expr>(n.a), max_nodes));
      else text += number(n.a);
      if (has_part_b(n)) parts.push_back(name(static_cast<Expr>(n.b), max_nodes));
      else text += number(n.b);
      text += number(n.c);
    }
    for (const std::string& named : parts) {
      if (named.empty()) return {};
      text += named;
    }
    text += ';';
    rest = then;
  }
  return text;
}

}  // namespace nanovllm::grammar
