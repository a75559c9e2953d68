#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/grammar/schema.h"

namespace nanovllm::grammar {

/// The meaning of each keyword, and of its opposite. A schema is the product of its keywords; the
/// opposite of a schema is the union of their opposites.
class Keywords {
 public:
  explicit Keywords(Schemas& schemas) : schemas_(schemas) {}
  Alternatives expand(const Term& term);
  /// Types outside of which no value satisfies the term, as far as that is easy to see.
  Types possible_types(const Term& term, int depth = 0);

 private:
  /// A keyword of a schema, and its value.
  struct Use {
    const Json& schema;
    std::string_view keyword;
    const Json& value;
    bool negated;
  };
  using Handler = Alternatives (Keywords::*)(const Use&);
  static Handler handler(std::string_view keyword);

  Types named_types(const Use& use);
  Alternatives types(const Use& use);
  Alternatives values(const Use& use);
  Alternatives bound(const Use& use);
  Alternatives multiple_of(const Use& use);
  Alternatives limit(const Use& use);
  Alternatives string_rule(const Use& use);
  Alternatives object_rules(const Use& use);
  Alternatives required(const Use& use);
  Alternatives property_names(const Use& use);
  Alternatives array_rules(const Use& use);
  Alternatives unique_items(const Use& use);
  Alternatives unevaluated(const Use& use);
  Alternatives reference(const Use& use);
  Alternatives combination(const Use& use);
  Alternatives one_of(const Use& use);
  Alternatives opposite(const Use& use);
  Alternatives condition(const Use& use);
  Alternatives dependencies(const Use& use);
  Alternatives not_supported(const Use& use);

  [[noreturn]] void wrong(const Use& use, std::string_view why) const {
    schemas_.document().refuse(use.schema, use.keyword, why);
  }
  Alternatives without(const Use& use, Types types, std::string_view why) const;
  Alternative with(ObjectRules rules) const;
  const Json& list(const Use& use) const;
  Alternatives branch(const Json& schema, bool negated);
  bool is_first(const Use& use, std::initializer_list<std::string_view> keywords) const;
  static bool is_trivial(const Json& schema);

  Schemas& schemas_;
};

/// Whether a number has no fraction, and how it is written then: 1.0 as 1.
bool is_integer(const Json& number);
std::string decimal(const Json& number);
size_t num_code_points(std::string_view text);

}  // namespace nanovllm::grammar
