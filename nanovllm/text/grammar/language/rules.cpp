#include <algorithm>
#include <map>
#include <ranges>
#include <unordered_map>

#include "nanovllm/base/error.h"
#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

/// Rewrites rules that begin with themselves, which derive() could not follow: it would look for
/// the first byte of A in A. Such rules, A_1 .. A_n, are a system of left-linear equations,
///
///     A_i = N_i | A_1 M_i1 | ... | A_n M_in
///
/// which Gaussian elimination solves with Arden's rule: A = N | A M has the solution A = N M*. The
/// elimination stops when each rule begins only with later ones. For N_i and M_ij to be found, no
/// A_j may be empty, so the equations are those of the rules without the empty text.
class LeftRecursion {
 public:
  explicit LeftRecursion(Expressions& e) : e_(e) {}

  void eliminate() {
    find_beginnings();
    for (const std::vector<uint32_t>& cycle : cycles()) solve(cycle);
  }

 private:
  using Kind = Expressions::Kind;
  static constexpr size_t kMaxCycle = 200;
  static constexpr uint32_t kMaxDepth = 10'000;

  /// The texts of an expression except the empty one: `rest`, or text of rule r and then after[r].
  struct Beginning {
    Expr rest = Expr::kNothing;
    std::map<uint32_t, Expr> after;
  };

  /// Finds the rules that each rule may begin with.
  void find_beginnings() {
    begins_with_.resize(e_.rules_.size());
    std::vector<uint32_t> seen(e_.nodes_.size(), kUnlimited);  // the last rule that met the node
    for (uint32_t rule = 0; rule < e_.rules_.size(); ++rule) {
      std::vector<Expr> open{e_.rules_[rule].body};
      const auto add = [&](uint32_t id) { open.push_back(static_cast<Expr>(id)); };
      while (!open.empty()) {
        const Expr at = open.back();
        open.pop_back();
        const auto n = e_.node(at);
        if (!n.has_rules || std::exchange(seen[static_cast<uint32_t>(at)], rule) == rule) continue;
        if (n.kind == Kind::kRule) {
          begins_with_[rule].push_back(n.a);
        } else if (n.kind == Kind::kAnyOf) {
          for (const Expr part : e_.list(n)) open.push_back(part);
        } else {
          add(n.a);
          if (n.kind == Kind::kSequence && e_.is_nullable(static_cast<Expr>(n.a))) add(n.b);
        }
      }
    }
  }

  /// The sets of rules that begin with each other: the strongly connected components, by R.
  /// Tarjan's algorithm with an explicit stack.
  std::vector<std::vector<uint32_t>> cycles() const {
    const size_t num_rules = begins_with_.size();
    std::vector<uint32_t> number(num_rules), low(num_rules), stack;
    std::vector<bool> on_stack(num_rules);
    std::vector<std::vector<uint32_t>> found;
    uint32_t next_number = 0;
    struct Visit {
      uint32_t rule;
      size_t next = 0;
    };
    for (uint32_t start = 0; start < num_rules; ++start) {
      if (number[start] != 0) continue;
      std::vector<Visit> path;
      const auto enter = [&](uint32_t rule) {
        number[rule] = low[rule] = ++next_number;
        stack.push_back(rule);
        on_stack[rule] = true;
        path.push_back({rule});
      };
      enter(start);
      while (!path.empty()) {
        const uint32_t rule = path.back().rule;
        if (path.back().next < begins_with_[rule].size()) {
          const uint32_t to = begins_with_[rule][path.back().next++];
          if (number[to] == 0) enter(to);
          else if (on_stack[to]) low[rule] = std::min(low[rule], number[to]);
          continue;
        }
        path.pop_back();
        if (!path.empty()) low[path.back().rule] = std::min(low[path.back().rule], low[rule]);
        if (low[rule] != number[rule]) continue;
        std::vector<uint32_t> component;
        while (component.empty() || component.back() != rule) {
          component.push_back(stack.back());
          on_stack[stack.back()] = false;
          stack.pop_back();
        }
        if (component.size() > 1 ||
            std::ranges::find(begins_with_[rule], rule) != begins_with_[rule].end())
          found.push_back(std::move(component));
      }
    }
    return found;
  }

  void solve(const std::vector<uint32_t>& cycle) {
    const size_t n = cycle.size();
    if (n > kMaxCycle)
      throw UserError(std::to_string(n) + " rules begin with each other, more than " +
                      std::to_string(kMaxCycle));
    cycle_.clear();
    for (uint32_t i = 0; i < n; ++i) cycle_[cycle[i]] = i;
    std::vector<Beginning> equations(n);
    for (uint32_t i = 0; i < n; ++i) equations[i] = beginning(e_.rules_[cycle[i]].body);
    for (uint32_t i = 0; i < n; ++i) {
      // Arden's rule for rule i, then its right side in the place of its name in the later ones.
      Beginning& equation = equations[i];
      if (const auto self = equation.after.extract(i)) {
        const Expr again = e_.repeat(self.mapped(), 0);
        equation.rest = e_.sequence(equation.rest, again);
        for (auto& [rule, after] : equation.after) after = e_.sequence(after, again);
      }
      for (uint32_t k = i + 1; k < n; ++k)
        if (const auto with_i = equations[k].after.extract(i))
          add(equations[k], equation, with_i.mapped());
    }
    std::vector<Expr> solved;  // the rules without the empty text
    for (uint32_t i = 0; i < n; ++i)
      solved.push_back(e_.new_rule(e_.rules_[cycle[i]].name + " (not empty)"));
    for (uint32_t i = 0; i < n; ++i) {
      std::vector<Expr> parts{equations[i].rest};
      for (const auto& [rule, after] : equations[i].after)
        parts.push_back(e_.sequence(solved[rule], after));
      e_.define(solved[i], e_.any_of(parts));
      Expr& body = e_.rules_[cycle[i]].body;
      body = e_.is_nullable(body) ? e_.optional(solved[i]) : solved[i];
    }
  }

  /// to = to | from then
  void add(Beginning& to, const Beginning& from, Expr then) {
    to.rest = e_.any_of({to.rest, e_.sequence(from.rest, then)});
    for (const auto& [rule, after] : from.after) {
      Expr& sum = to.after.try_emplace(rule, Expr::kNothing).first->second;
      sum = e_.any_of({sum, e_.sequence(after, then)});
    }
  }

  Beginning beginning(Expr expr) {
    if (++depth_ > kMaxDepth)
      throw UserError("a rule that begins with itself does so more than " +
                      std::to_string(kMaxDepth) + " levels deep");
    const auto n = e_.node(expr);  // a copy, because nodes_ grows
    const auto a = static_cast<Expr>(n.a), b = static_cast<Expr>(n.b);
    Beginning result;
    if (!n.has_rules) {
      result.rest = n.nullable ? e_.both(expr, e_.complement(Expr::kEmpty)) : expr;
    } else if (n.kind == Kind::kRule) {
      if (const auto in_cycle = cycle_.find(n.a); in_cycle != cycle_.end())
        result.after[in_cycle->second] = Expr::kEmpty;
      else result.rest = not_empty(expr);
    } else if (n.kind == Kind::kAnyOf) {
      const auto parts = e_.list(n);
      for (const Expr part : std::vector(parts.begin(), parts.end()))
        add(result, beginning(part), Expr::kEmpty);
    } else if (n.kind == Kind::kRepeat) {
      const Expr again = e_.repeat(a, n.b == 0 ? 0 : n.b - 1, n.c == kUnlimited ? n.c : n.c - 1);
      add(result, beginning(a), again);
    } else {  // kSequence
      add(result, beginning(a), b);
      if (e_.is_nullable(a)) add(result, beginning(b), Expr::kEmpty);
    }
    --depth_;
    return result;
  }

  /// A rule outside of the cycle, without the empty text.
  Expr not_empty(Expr rule) {
    if (!e_.is_nullable(rule)) return rule;
    const uint32_t id = e_.node(rule).a;
    if (const auto known = not_empty_.find(id); known != not_empty_.end()) return known->second;
    const Expr result = e_.new_rule(e_.rules_[id].name + " (not empty)");
    not_empty_[id] = result;
    // No rule of another cycle is in its own beginning: cycles end before what begins with them.
    const auto outer = std::exchange(cycle_, {});
    e_.define(result, beginning(e_.rules_[id].body).rest);
    cycle_ = outer;
    return result;
  }

  Expressions& e_;
  std::vector<std::vector<uint32_t>> begins_with_;  // [rules]
  std::unordered_map<uint32_t, uint32_t> cycle_;    // the place in the cycle of each of its rules
  std::unordered_map<uint32_t, Expr> not_empty_;
  uint32_t depth_ = 0;  // of nested calls of beginning()
};

Expr Expressions::prepare(Expr start) {
  for (const Rule& rule : rules_)
    if (!rule.defined) throw UserError("the rule " + rule.name + " is not defined");
  find_classes();
  find_nullable();
  LeftRecursion(*this).eliminate();
  find_nullable();
  const std::vector<Expr> renamed = find_texts();
  for (Rule& rule : rules_) rule.body = renamed[static_cast<uint32_t>(rule.body)];
  num_prepared_nodes_ = nodes_.size();
  num_prepared_alternatives_ = alternatives_.size();
  is_prepared_ = true;
  return renamed[static_cast<uint32_t>(start)];
}

void Expressions::find_classes() {
  // Each set splits the classes that it has only a part of.
  size_t num_classes = 1;
  for (const Bytes& set : sets_) {
    std::array<uint16_t, 256> moved{};  // the class that the bytes of a class in the set get
    std::array<uint16_t, 256> inside{}, total{};
    for (size_t b = 0; b < 256; ++b) {
      ++total[class_of_[b]];
      if (set[b]) ++inside[class_of_[b]];
    }
    for (size_t b = 0; b < 256; ++b) {
      const uint8_t old = class_of_[b];
      if (!set[b] || inside[old] == total[old]) continue;
      if (moved[old] == 0) moved[old] = static_cast<uint16_t>(num_classes++);
      class_of_[b] = static_cast<uint8_t>(moved[old]);
    }
  }
  representatives_.resize(num_classes);
  for (size_t b = 256; b-- > 0;) representatives_[class_of_[b]] = static_cast<uint8_t>(b);
  row_of_.assign(nodes_.size(), 0);
  viable_.assign(nodes_.size(), Viable::kUnknown);
}

/// Which nodes a fact holds for. It holds for those given, for sequences of two for which it holds,
/// and for alternatives, repetitions and rules if it holds for one of their parts.
std::vector<bool> Expressions::propagate(std::vector<bool> holds) const {
  const auto num_nodes = static_cast<uint32_t>(nodes_.size());
  // What each node is a part of: users[begin[i] .. begin[i + 1]).
  std::vector<uint32_t> begin(num_nodes + 1), users, rule_users(num_nodes);
  const auto for_each_part = [&](uint32_t i, auto&& visit) {
    const Node& n = nodes_[i];
    if (!n.has_rules) return;
    if (n.kind == Kind::kRule) return visit(static_cast<uint32_t>(rules_[n.a].body));
    if (n.kind == Kind::kAnyOf) {
      for (const Expr part : list(n)) visit(static_cast<uint32_t>(part));
      return;
    }
    visit(n.a);
    if (n.kind == Kind::kSequence) visit(n.b);
  };
  for (uint32_t i = 0; i < num_nodes; ++i)
    for_each_part(i, [&](uint32_t part) { ++begin[part + 1]; });
  for (uint32_t i = 0; i < num_nodes; ++i) begin[i + 1] += begin[i];
  users.resize(begin[num_nodes]);
  std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
  for (uint32_t i = 0; i < num_nodes; ++i)
    for_each_part(i, [&](uint32_t part) { users[next[part]++] = i; });
  std::vector<uint32_t> open;
  for (uint32_t i = 0; i < num_nodes; ++i)
    if (holds[i]) open.push_back(i);
  while (!open.empty()) {
    const uint32_t part = open.back();
    open.pop_back();
    for (uint32_t i = begin[part]; i < begin[part + 1]; ++i) {
      const uint32_t user = users[i];
      const Node& n = nodes_[user];
      if (holds[user] || (n.kind == Kind::kSequence && !(holds[n.a] && holds[n.b]))) continue;
      holds[user] = true;
      open.push_back(user);
    }
  }
  return holds;
}

void Expressions::find_nullable() {
  if (rules_.empty()) return;
  std::vector<bool> nullable(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) nullable[i] = nodes_[i].nullable;
  nullable = propagate(std::move(nullable));
  for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i].nullable = nullable[i];
}

/// Removes what has no text: intersections and complements that are empty, rules that never end,
/// and all that needs them. Returns what each node has become.
std::vector<Expr> Expressions::find_texts() {
  const auto num_nodes = static_cast<uint32_t>(nodes_.size());
  std::vector<Expr> renamed(num_nodes);
  const auto rename = [&](uint32_t i) {
    const Node n = nodes_[i];
    const auto self = static_cast<Expr>(i);
    const auto is_same = [&](uint32_t part) { return renamed[part] == static_cast<Expr>(part); };
    switch (n.kind) {
      case Kind::kSequence:
        return is_same(n.a) && is_same(n.b) ? self : sequence(renamed[n.a], renamed[n.b]);
      case Kind::kAnyOf: {
        std::vector<Expr> parts;
        bool same = true;
        for (uint32_t k = 0; k < n.b; ++k) {
          const auto part = static_cast<uint32_t>(alternatives_[n.a + k]);
          same &= is_same(part);
          parts.push_back(renamed[part]);
        }
        return same ? self : any_of(parts);
      }
      case Kind::kRepeat:
        return is_same(n.a) ? self : repeat(renamed[n.a], n.b, n.c);
      case Kind::kBoth:
      case Kind::kComplement: {
        const Expr e =
            n.kind == Kind::kBoth ? both(renamed[n.a], renamed[n.b]) : complement(renamed[n.a]);
        return is_viable(e) ? e : Expr::kNothing;
      }
      default:
        return self;
    }
  };
  for (uint32_t i = 0; i < num_nodes; ++i)
    if (!nodes_[i].has_rules) renamed[i] = rename(i);
  if (rules_.empty()) return renamed;
  std::vector<bool> productive(nodes_.size());  // renaming has added nodes
  for (uint32_t i = 0; i < num_nodes; ++i)
    productive[i] = nodes_[i].has_rules ? nodes_[i].nullable : renamed[i] != Expr::kNothing;
  productive = propagate(std::move(productive));
  for (uint32_t i = 0; i < num_nodes; ++i)
    if (nodes_[i].has_rules) renamed[i] = productive[i] ? rename(i) : Expr::kNothing;
  return renamed;
}

}  // namespace nanovllm::grammar
