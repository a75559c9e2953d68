#include "nanovllm/text/grammar/schema/schema_keywords.h"

namespace nanovllm::grammar::keywords {

Alternatives reference(const Use& use) {
  return use.branch(use.schemas.document().target(use.schema), use.negated);
}

/// allOf and anyOf. The opposite of "any" is that all are wrong, and that of "all" that any is.
Alternatives combination(const Use& use) {
  std::vector<Alternatives> branches;
  for (const Json& schema : use.list()) branches.push_back(use.branch(schema, use.negated));
  return (use.keyword == "allOf") != use.negated ? use.schemas.product(std::move(branches))
                                                 : joined(std::move(branches));
}

/// One branch, and none of those that share a value with it. The opposite: none of all, or two.
Alternatives one_of(const Use& use) {
  Schemas& schemas = use.schemas;
  const size_t num = use.list().size();
  std::vector<Alternatives> branches, opposites(num), results;
  for (const Json& schema : use.value) branches.push_back(use.branch(schema, false));
  // What the keywords beside oneOf exclude needs no opposite.
  std::vector<Alternatives> beside;
  for (const char* const keyword : {"type", "properties", "required"})
    if (!use.negated && use.schema.contains(keyword))
      beside.push_back(expand_keyword(schemas, use.schema, keyword));
  const Alternatives around = schemas.product(std::move(beside));
  std::vector<std::vector<std::pair<size_t, Types>>> overlaps(num);
  for (size_t i = 0; i < num; ++i)
    for (size_t j = 0; j < i; ++j) {
      Alternatives two = schemas.product(schemas.product(branches[i], branches[j]), around);
      if (two.empty()) continue;
      Types types;
      for (const Alternative& a : two) types |= a.types;
      overlaps[i].emplace_back(j, types);
      overlaps[j].emplace_back(i, types);
      if (use.negated) results.push_back(std::move(two));
    }
  for (size_t i = 0; i < num; ++i)
    if (use.negated || !overlaps[i].empty()) opposites[i] = use.branch(use.value[i], true);
  for (size_t i = 0; i < num && !use.negated; ++i) {
    std::vector<Alternatives> factors = {std::move(branches[i])};
    for (const auto& [j, types] : overlaps[i]) {
      Alternatives& factor = factors.emplace_back(opposites[j]);
      for (Alternative& a : factor) a.types &= types;
      factor.emplace_back().types = ~types;
      std::erase_if(factor, [](const Alternative& a) { return a.types.none(); });
    }
    results.push_back(schemas.product(std::move(factors)));
  }
  if (use.negated) results.push_back(schemas.product(std::move(opposites)));
  return joined(std::move(results));
}

Alternatives opposite(const Use& use) { return use.branch(use.value, !use.negated); }

/// if, then, else: both hold, or the condition is wrong and `else` holds.
Alternatives condition(const Use& use) {
  const auto part = [&](std::string_view keyword) {
    return use.schema.contains(keyword) ? use.branch(use.schema[keyword], use.negated)
                                        : no_effect(use.negated);
  };
  return joined({use.schemas.product(use.branch(use.value, false), part("then")),
                 use.schemas.product(use.branch(use.value, true), part("else"))});
}

/// For each name: it is absent, or the others are there, or the schema holds. Where `properties`
/// does not say which comes first, both orders are possible.
Alternatives dependencies(const Use& use) {
  if (!use.value.is_object()) use.refuse("must be an object");
  std::vector<Alternatives> factors;
  for (const auto& [name, needed] : use.value.items()) {
    const auto present = [&] { return Alternatives{with_member(use.schemas, name, {&kAnything})}; };
    const auto then = [&] {
      return needed.is_array()
                 ? required({use.schemas, use.schema, use.keyword, needed, use.negated})
                 : use.branch(needed, use.negated);
    };
    const Alternatives first = present();
    std::vector<Alternatives> choices = {use.schemas.product(first, then())};
    if (!use.schema["properties"].is_object() || !use.schema["properties"].contains(name)) {
      const Alternatives before = then();
      choices.push_back(use.schemas.product(before, present()));
    }
    if (!use.negated) choices.push_back({without_member(use.schemas, name)});
    factors.push_back(joined(std::move(choices)));
  }
  return use.negated ? joined(std::move(factors)) : use.schemas.product(std::move(factors));
}

}  // namespace nanovllm::grammar::keywords
