#include <algorithm>
#include <ranges>
#include <unordered_set>

#include "nanovllm/base/error.h"
#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

namespace {

constexpr uint32_t kMaxDeriveDepth = 10'000;
constexpr size_t kMaxSearchSteps = 200'000;

}  // namespace

Expr Expressions::compute_derivative(Expr e, uint32_t byte_class) {
  if (e == Expr::kNothing || e == Expr::kEmpty) return Expr::kNothing;
  if (derive_depth_ >= kMaxDeriveDepth)
    throw UserError("its parts begin with one another more than " +
                    std::to_string(kMaxDeriveDepth) + " levels deep");
  if (derive_depth_++ == 0) num_joined_ = 0;
  if (is_prepared_ && derive_depth_ == 1) num_searched_ = 0;
  Expr result = Expr::kNothing;
  try {
    result = derive_parts(e, byte_class);
  } catch (...) {
    derive_depth_ = join_depth_ = 0;
    throw;
  }
  --derive_depth_;
  const size_t num_classes = representatives_.size();
  uint32_t& row = row_of_[static_cast<uint32_t>(e)];
  if (row == 0) {
    check_memory();
    derivatives_.resize(derivatives_.size() + num_classes, kUnknown);
    row = static_cast<uint32_t>(derivatives_.size() / num_classes);
  }
  return derivatives_[(row - 1) * num_classes + byte_class] = result;
}

Expr Expressions::derive_parts(Expr e, uint32_t byte_class) {
  const Node n = node(e);  // a copy, because nodes_ grows
  const auto a = static_cast<Expr>(n.a), b = static_cast<Expr>(n.b);
  // sequence() for each alternative, so that those of several rests can be joined.
  const auto append = [this](Expr first, Expr then) {
    if (node(first).kind != Kind::kAnyOf || node(first).b > 16) return sequence(first, then);
    const auto parts = list(node(first));
    std::vector<Expr> sequences(parts.begin(), parts.end());
    for (Expr& part : sequences) part = sequence(part, then);
    return any_of(sequences);
  };
  switch (n.kind) {
    case Kind::kBytes:
      return sets_[n.a][representatives_[byte_class]] ? Expr::kEmpty : Expr::kNothing;
    case Kind::kSequence: {
      const Expr in_first = append(derive_class(a, byte_class), b);
      return is_nullable(a) ? any_of({in_first, derive_class(b, byte_class)}) : in_first;
    }
    case Kind::kAnyOf: {
      std::vector<Expr> parts;
      for (uint32_t i = 0; i < n.b; ++i) {
        const Expr part = derive_class(alternatives_[n.a + i], byte_class);
        if (part != Expr::kNothing) parts.push_back(part);
      }
      return any_of(parts);
    }
    case Kind::kBoth:
    case Kind::kComplement: {
      const Expr rest = derive_intersection(n, byte_class);
      return is_viable(rest) ? rest : Expr::kNothing;
    }
    case Kind::kRepeat: {
      const Expr rest = repeat(a, n.b == 0 ? 0 : n.b - 1, n.c == kUnlimited ? kUnlimited : n.c - 1);
      return append(derive_class(a, byte_class), rest);
    }
    case Kind::kMultiple:
      return derive_multiple(n, representatives_[byte_class]);
    case Kind::kRule:
      return derive_class(rules_[n.a].body, byte_class);
    default:
      return Expr::kNothing;
  }
}

Expr Expressions::derive_intersection(const Node& n, uint32_t byte_class) {
  const Expr a = derive_class(static_cast<Expr>(n.a), byte_class);
  if (n.kind == Kind::kComplement) return complement(a);
  return a == Expr::kNothing ? a : both(a, derive_class(static_cast<Expr>(n.b), byte_class));
}

bool Expressions::is_viable(Expr e) {
  // Every expression but these is made of viable parts.
  const auto is_open = [this](Expr part) {
    const Node& n = node(part);
    return (n.kind == Kind::kBoth || n.kind == Kind::kComplement) && !n.nullable &&
           viable_[static_cast<uint32_t>(part)] == Viable::kUnknown;
  };
  const auto is_known = [this](Expr part) {
    return part != Expr::kNothing && viable_[static_cast<uint32_t>(part)] != Viable::kNo;
  };
  if (!is_open(e)) return is_known(e);
  // A depth-first search for an expression with a text. `path` leads to where the search is.
  struct Place {
    Expr e;
    uint32_t next_class = 0;
  };
  std::vector<Place> path{{e}};
  std::unordered_set<Expr> seen{e};
  while (!path.empty()) {
    if (++num_searched_ > kMaxSearchSteps)
      throw UserError("to see whether its parts exclude each other takes more than " +
                      std::to_string(kMaxSearchSteps) + " steps");
    Place& at = path.back();
    if (at.next_class == representatives_.size()) {
      path.pop_back();
      continue;
    }
    const Expr rest = derive_intersection(Node(node(at.e)), at.next_class++);
    if (!is_open(rest)) {
      if (!is_known(rest)) continue;
      for (const Place& place : path) viable_[static_cast<uint32_t>(place.e)] = Viable::kYes;
      return true;
    }
    if (seen.insert(rest).second) path.push_back({rest});
  }
  for (const Expr dead : seen) viable_[static_cast<uint32_t>(dead)] = Viable::kNo;
  return false;
}

Expr Expressions::derive_multiple(Node n, uint8_t byte) {
  // n.c is the number of digits that the fraction may have; kPoint is added after the point.
  const auto scaled = [](uint64_t remainder, uint64_t divisor, uint32_t digits) {
    for (; digits > 0; --digits) remainder = remainder * 10 % divisor;
    return remainder;
  };
  const bool after_point = n.c >= kPoint;
  if (byte == '.' && !after_point) {
    n.c += kPoint;
  } else if (byte >= '0' && byte <= '9') {
    const uint32_t digit = byte - '0';
    if (n.c == kPoint) return digit == 0 ? intern(n) : Expr::kNothing;
    n.b = static_cast<uint32_t>((uint64_t{n.b} * 10 + digit) % n.a);
    if (after_point) --n.c;
  } else {
    return Expr::kNothing;
  }
  const uint32_t digits = n.c % kPoint;
  const uint64_t remainder = scaled(n.b, n.a, digits);
  n.nullable = remainder == 0;
  if (n.c >= kPoint && !n.nullable) {
    uint64_t limit = 1;  // the digits that may follow can add less than this
    for (uint32_t i = 0; i < digits; ++i) limit *= 10;
    if (n.a - remainder >= limit) return Expr::kNothing;
  }
  return intern(n);
}

Bytes Expressions::first_bytes(Expr e) {
  Bytes classes, bytes;
  for (uint32_t i = 0; i < representatives_.size(); ++i)
    classes[i] = derive_class(e, i) != Expr::kNothing;
  for (size_t byte = 0; byte < 256; ++byte) bytes[byte] = classes[class_of_[byte]];
  return bytes;
}

bool Expressions::is_prefix_free(Expr e) {
  constexpr size_t kMaxStates = 1000;
  std::vector<Expr> open{e};
  std::unordered_set<Expr> seen{e};
  while (!open.empty()) {
    const Expr at = open.back();
    open.pop_back();
    if (at == Expr::kEmpty) continue;
    if (is_nullable(at) || seen.size() > kMaxStates) return false;
    for (uint32_t i = 0; i < representatives_.size(); ++i) {
      const Expr rest = derive_class(at, i);
      if (rest != Expr::kNothing && seen.insert(rest).second) open.push_back(rest);
    }
  }
  return true;
}

void Expressions::forget_all_but(std::span<Expr> kept_states) {
  // What they consist of that was not there before. Parts have lower numbers than what has them.
  struct Kept {
    uint32_t id;
    Node node;
    std::vector<Expr> list;
  };
  std::vector<Kept> kept;
  std::vector<uint32_t> open;
  for (const Expr e : kept_states) open.push_back(static_cast<uint32_t>(e));
  std::unordered_set<uint32_t> seen;
  while (!open.empty()) {
    const uint32_t id = open.back();
    open.pop_back();
    if (id < num_prepared_nodes_ || !seen.insert(id).second) continue;
    const Node& n = nodes_[id];
    Kept& k = kept.emplace_back(id, n);
    if (n.kind == Kind::kAnyOf) {
      const auto parts = list(n);
      k.list.assign(parts.begin(), parts.end());
      for (const Expr part : parts) open.push_back(static_cast<uint32_t>(part));
    }
    if (has_part_a(n)) open.push_back(n.a);
    if (has_part_b(n)) open.push_back(n.b);
  }
  std::ranges::sort(kept, {}, &Kept::id);

  nodes_.resize(num_prepared_nodes_);
  alternatives_.resize(num_prepared_alternatives_);
  row_of_.assign(num_prepared_nodes_, 0);
  viable_.resize(num_prepared_nodes_);
  derivatives_ = {};
  rebuild_places(1024);

  std::unordered_map<uint32_t, uint32_t> renamed;
  const auto rename = [&](uint32_t& id) {
    if (id >= num_prepared_nodes_) id = renamed.at(id);
  };
  for (Kept& k : kept) {
    if (has_part_a(k.node)) rename(k.node.a);
    if (has_part_b(k.node)) rename(k.node.b);
    for (Expr& part : k.list) {
      auto id = static_cast<uint32_t>(part);
      rename(id);
      part = static_cast<Expr>(id);
    }
    std::ranges::sort(k.list);
    renamed[k.id] = static_cast<uint32_t>(intern(k.node, k.list));
  }
  for (Expr& e : kept_states) {
    auto id = static_cast<uint32_t>(e);
    rename(id);
    e = static_cast<Expr>(id);
  }
}

}  // namespace nanovllm::grammar
