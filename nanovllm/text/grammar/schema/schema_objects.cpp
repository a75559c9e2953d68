#include <algorithm>
#include <unordered_set>

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/schema/schema_values.h"

namespace nanovllm::grammar {

namespace {

/// Members times the numbers of them that are counted, for minProperties and maxProperties.
constexpr size_t kMaxMemberStates = 20'000;
constexpr size_t kMaxMembers = 5000;
constexpr size_t kMaxPatterns = 8;
constexpr uint32_t kMaxPrefix = 10'000;

}  // namespace

Expr SchemaValues::list_end(Expr element, uint32_t num, const Limits& limits, Expr close) {
  const uint32_t min = limits.min - std::min(limits.min, num);
  const uint32_t max =
      limits.max == kUnlimited ? kUnlimited : limits.max - std::min(limits.max, num);
  const Expr end = e_.sequence(json_.gap, close);
  if (num > 0) return e_.sequence(e_.repeat(e_.sequence(json_.comma, element), min, max), end);
  if (max == 0 || element == Expr::kNothing) return min == 0 ? close : Expr::kNothing;
  const Expr more = list_end(element, 1, limits, close);
  return e_.any_of({min == 0 ? close : Expr::kNothing, e_.sequence(element, more)});
}

Expr SchemaValues::array(const Alternative& a) {
  size_t num = 0;
  for (const auto& rules : a.arrays) num = std::max(num, rules->prefix.size());
  num = std::min<size_t>(num, a.items.max);
  require(num <= kMaxPrefix, "{}: more than {} elements with schemas of their own",
          schemas_.document().where(), kMaxPrefix);
  const Expr close = e_.text("]");
  Expr rest = list_end(value(Schemas::element(a, num)), static_cast<uint32_t>(num), a.items, close);
  for (size_t i = num; i-- > 0;) {
    const Expr element = value(Schemas::element(a, i));
    rest = e_.sequence({i > 0 ? json_.comma : Expr::kEmpty, element, rest});
    if (i >= a.items.min) rest = e_.any_of({rest, i > 0 ? e_.sequence(json_.gap, close) : close});
  }
  return e_.sequence({e_.text("["), json_.gap, rest});
}

Expr SchemaValues::object(const Alternative& a) {
  auto ordered = a.objects;
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& x, const auto& y) { return x->order < y->order; });
  std::vector<std::string_view> names;
  std::unordered_set<std::string_view> seen, required;
  const auto add = [&](std::string_view name) {
    if (seen.insert(name).second) names.push_back(name);
  };
  for (const auto& rules : ordered)
    for (const auto& [name, term] : rules->properties) add(name);
  for (const auto& rules : ordered)
    for (const std::string_view name : rules->required) {
      add(name);
      required.insert(name);
    }
  require(names.size() <= kMaxMembers, "{}: an object has more than {} named members",
          schemas_.document().where(), kMaxMembers);
  std::vector<Member> named;
  for (const std::string_view name : names) {
    const Expr text =
        e_.sequence({json_.quoted(e_, name), json_.colon, value(schemas_.member(a, name))});
    named.push_back({text, required.contains(name)});
  }
  return e_.sequence({e_.text("{"), json_.gap, members(named, other_member(a, names), a.members)});
}

/// The named members in their order, then the others. A state is how many named members are behind
/// and how many members are written, as far as that matters: 0 for the comma, and up to the limits.
Expr SchemaValues::members(const std::vector<Member>& named, Expr other, const Limits& limits) {
  const auto num_required = static_cast<uint32_t>(
      std::count_if(named.begin(), named.end(), [](const Member& m) { return m.required; }));
  Limits counted = limits;
  if (counted.min <= num_required) counted.min = 0;
  if (other == Expr::kNothing && counted.max >= named.size()) counted.max = kUnlimited;
  const bool has_max = counted.max != kUnlimited;
  const uint32_t most = has_max ? counted.max : std::max(counted.min, 1U);
  const size_t num_counts = std::min<size_t>(most, named.size()) + 1;
  require(named.size() * num_counts <= kMaxMemberStates || num_counts <= 2,
          "{}: minProperties and maxProperties with {} members need more than {} states",
          schemas_.document().where(), named.size(), kMaxMemberStates);
  const Expr close = e_.text("}");
  std::vector<Expr> rest(num_counts);  // [number of members written]
  for (uint32_t num = 0; num < num_counts; ++num) rest[num] = list_end(other, num, counted, close);
  for (size_t i = named.size(); i-- > 0;) {
    std::vector<Expr> next(std::min(num_counts, i + 1));
    for (uint32_t num = 0; num < next.size(); ++num) {
      const uint32_t more = num + 1;
      Expr with = Expr::kNothing;
      if (more < num_counts || !has_max)
        with = e_.sequence({num > 0 ? json_.comma : Expr::kEmpty, named[i].text,
                            rest[std::min<size_t>(more, num_counts - 1)]});
      next[num] = with;
      if (named[i].required) continue;
      // A rule for each optional member: the alternatives of all the later ones are named once.
      next[num] = e_.new_rule("members");
      e_.define(next[num], e_.any_of({with, rest[num]}));
    }
    rest = std::move(next);
  }
  return rest[0];
}

/// Keys that are not named, in any coding if nothing is said about keys.
Expr SchemaValues::other_key(const Alternative& a, const std::vector<std::string_view>& named) {
  Expr body = e_.repeat(json_.character, 0);
  bool is_free = named.empty();
  for (const auto& rules : a.objects) {
    is_free &= rules->patterns.empty() && !rules->names;
    if (!rules->names) continue;
    std::vector<Expr> bodies;
    for (const Alternative& names : schemas_.expand({*rules->names}))
      if (names.types[kString]) bodies.push_back(string_body(names));
    body = e_.both(body, e_.any_of(bodies));
  }
  if (is_free) return e_.repeat(json_.free_character, 0);
  std::vector<Expr> texts;
  for (const std::string_view name : named) texts.push_back(string_text(e_, name));
  return texts.empty() ? body : e_.both(body, e_.complement(e_.any_of(texts)));
}

Expr SchemaValues::other_member(const Alternative& a, const std::vector<std::string_view>& named) {
  std::vector<std::string_view> patterns;
  std::vector<Expr> matching;
  for (const auto& rules : a.objects)
    for (const auto& [text, term] : rules->patterns)
      if (std::find(patterns.begin(), patterns.end(), text) == patterns.end()) {
        patterns.push_back(text);
        matching.push_back(
            texts_of(e_, {text, term.json}, Coding::kJsonString, schemas_.document()));
      }
  require(patterns.size() <= kMaxPatterns, "{}: more than {} patternProperties in one object",
          schemas_.document().where(), kMaxPatterns);
  const Expr any_key = other_key(a, named);
  std::vector<Expr> members;
  // Each set of patterns is a class of keys, with the schemas of all of them.
  for (size_t set = 0; set < size_t{1} << patterns.size(); ++set) {
    const auto is_in_set = [&](std::string_view pattern) {
      return set >> (std::find(patterns.begin(), patterns.end(), pattern) - patterns.begin()) & 1;
    };
    Terms terms;
    bool is_mentioned = set != 0;
    for (const auto& rules : a.objects) {
      bool is_listed = false;
      for (const auto& [pattern, term] : rules->patterns)
        if (is_in_set(pattern)) {
          add_term(terms, term);
          is_listed = true;
        }
      if (is_listed || !rules->additional) continue;
      add_term(terms, *rules->additional);
      is_mentioned = true;
    }
    if (!is_mentioned && options_.disable_additional_properties &&
        !(named.empty() && patterns.empty()))
      continue;
    const Expr member_value = value(terms);
    if (member_value == Expr::kNothing) continue;
    Expr key = any_key;
    for (size_t i = 0; i < patterns.size(); ++i)
      key = e_.both(key, set >> i & 1 ? matching[i] : e_.complement(matching[i]));
    members.push_back(e_.sequence({json_.quoted(e_, key), json_.colon, member_value}));
  }
  return e_.any_of(members);
}

}  // namespace nanovllm::grammar
