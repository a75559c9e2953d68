#pragma once

#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/text/grammar/schema/schema.h"

/// What each keyword of a schema means, and what its opposite means.
namespace nanovllm::grammar::keywords {

constexpr std::string_view kNoOpposite =
    "is not supported inside of not, oneOf, if or dependencies";
inline const Json kAnything = true;

/// A keyword of a schema and its value, or the opposite of what they say.
struct Use {
  Schemas& schemas;
  const Json& schema;
  std::string_view keyword;
  const Json& value;
  bool negated = false;

  [[noreturn]] void refuse(std::string_view why) const {
    schemas.document().refuse(schema, keyword, why);
  }
  const Json& list() const {
    if (!value.is_array()) refuse("must be a list");
    return value;
  }
  /// Another keyword of the same schema.
  Use with(std::string_view other) const {
    return {schemas, schema, other, schema[other], negated};
  }
  Alternatives branch(const Json& part, bool is_negated) const {
    return schemas.resolve({&part, is_negated ? Term::Kind::kNot : Term::Kind::kSchema});
  }
  /// Whether no keyword before this one in the list is given. Keywords that are understood together
  /// are read when the first of them is seen.
  bool is_first(std::initializer_list<std::string_view> keywords) const {
    for (const std::string_view other : keywords)
      if (schema.contains(other)) return other == keyword;
    return false;
  }
};

inline Types only(Type type) { return Types(1ULL << type); }

inline Alternatives no_effect(bool negated) {
  return negated ? Alternatives{} : Alternatives{Alternative{}};
}

inline bool is_trivial(const Json& schema) {
  return schema == kAnything || (schema.is_object() && schema.empty());
}

inline Alternatives joined(std::vector<Alternatives> parts) {
  Alternatives result;
  for (Alternatives& part : parts) std::move(part.begin(), part.end(), std::back_inserter(result));
  return result;
}

/// Any value; but where one of these types is possible, the keyword is refused.
Alternatives without(const Use& use, Types types, std::string_view why);
/// Objects with these rules, and all values that are no objects.
Alternative with_rules(Schemas& schemas, ObjectRules rules);
/// Objects with a member that satisfies the term. Members that are named like this come last.
Alternative with_member(Schemas& schemas, std::string_view name, const Term& term);
/// All values but objects with this member.
Alternative without_member(Schemas& schemas, std::string_view name);
Alternatives required(const Use& use);

// -- schema_combinations.cpp
Alternatives reference(const Use& use);
Alternatives combination(const Use& use);
Alternatives one_of(const Use& use);
Alternatives opposite(const Use& use);
Alternatives condition(const Use& use);
Alternatives dependencies(const Use& use);

}  // namespace nanovllm::grammar::keywords
