#pragma once

#include <bitset>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/language/expressions.h"
#include "nanovllm/text/grammar/schema/schema_document.h"

namespace nanovllm::grammar {

/// A condition on a value: a schema, the opposite of a schema, or equality with a value.
struct Term {
  enum class Kind : uint8_t { kSchema, kNot, kValue };
  const Json* json = nullptr;
  Kind kind = Kind::kSchema;

  auto operator<=>(const Term&) const = default;
};
/// Conditions that hold together, each once, in the order in which the document names them.
using Terms = std::vector<Term>;

/// The types of JSON. Numbers are two, since integers are numbers: with and without a fraction.
/// Booleans are two, so that a type says all about a value that is neither a number nor structured.
enum Type : uint8_t { kNull, kFalse, kTrue, kInteger, kFraction, kString, kArray, kObject };
using Types = std::bitset<8>;
inline constexpr Types kNumbers = 1 << kInteger | 1 << kFraction;

struct Limits {
  uint32_t min = 0, max = kUnlimited;
  bool operator==(const Limits&) const = default;
};

/// A `pattern` or a `format`, or the opposite of one.
struct StringRule {
  std::string_view text;
  const Json* place = nullptr;  ///< for messages
  bool is_format = false, negated = false;
  auto operator<=>(const StringRule&) const = default;
};

/// What one schema says about members. `additional` is for names that are in neither list of it,
/// so objects that satisfy several schemas keep the rules of each.
struct ObjectRules {
  std::vector<std::pair<std::string_view, Term>> properties, patterns;
  std::unordered_map<std::string_view, Term> by_name;  ///< the properties
  std::optional<Term> additional, names;
  std::vector<std::string_view> required;
  size_t order = 0;  ///< in which the document names it
  static constexpr size_t kLast = size_t{1} << 32;

  void add(std::string_view name, const Term& term) {
    if (by_name.emplace(name, term).second) properties.emplace_back(name, term);
  }
};

/// What one schema says about the elements of an array.
struct ArrayRules {
  std::vector<Term> prefix;
  std::optional<Term> rest;
};

/// A keyword that is not supported, which matters if one of the types is possible.
struct Unsupported {
  Types types;
  const Json* schema = nullptr;
  std::string_view keyword, why;
  bool operator==(const Unsupported&) const = default;
};

/// Conditions without any choice: the intersection of schemas after anyOf, oneOf, not and $ref are
/// resolved. Each says something about values of its type only.
struct Alternative {
  Types types = Types().set();
  /// If given, the only numbers and strings. They satisfy the other conditions.
  std::optional<std::vector<const Json*>> values;
  std::vector<const Json*> excluded;  ///< numbers and strings that are not allowed
  const Json* min = nullptr;
  const Json* max = nullptr;
  bool min_exclusive = false, max_exclusive = false;
  std::vector<const Json*> multiples;
  std::vector<StringRule> strings;
  Limits lengths, items, members;
  std::vector<std::shared_ptr<const ObjectRules>> objects;
  std::vector<std::shared_ptr<const ArrayRules>> arrays;
  std::vector<Unsupported> unsupported;

  bool operator==(const Alternative&) const = default;
};
using Alternatives = std::vector<Alternative>;

/// Resolves schemas into alternatives. Throws UserError for what is wrong or not supported in them.
class Schemas {
 public:
  explicit Schemas(const SchemaDocument& document) : document_(document) {}

  const SchemaDocument& document() const { return document_; }
  /// A value is allowed if one of these allows it. The impossible ones are left out, as far as they
  /// are easy to recognize.
  Alternatives expand(const Terms& terms);
  /// The conditions on the member `name`, or on the element at `index`.
  Terms member(const Alternative& object, std::string_view name);
  static Terms element(const Alternative& array, size_t index);

  // -- For the keywords: parts of the schema that is being expanded.
  Alternatives resolve(const Term& term);
  Alternatives product(const Alternatives& a, const Alternatives& b);
  /// The product of all, beginning with those that have the fewest alternatives.
  Alternatives product(std::vector<Alternatives> factors);
  size_t next_order() { return num_rules_++; }

 private:
  struct Tester {
    std::unique_ptr<Expressions> expressions;
    Expr expr;
  };

  std::optional<Alternative> both(const Alternative& a, const Alternative& b);
  bool is_possible(Alternative& a);
  bool has_impossible_part(const Alternative& a, Type type);
  /// Whether some text satisfies all rules.
  bool is_possible(const std::vector<StringRule>& rules);
  /// Whether a number or a string satisfies all but `values`.
  bool allows(const Alternative& a, const Json& value);
  bool matches(const StringRule& rule, std::string_view text);
  void count_work(size_t amount);
  std::string here() const;  ///< the place of the schema that is being resolved

  const SchemaDocument& document_;
  std::map<std::pair<bool, std::string_view>, Tester> testers_;  ///< by format and text
  std::map<std::vector<StringRule>, bool> possible_;
  std::map<std::pair<int, Terms>, bool> impossible_;  ///< by depth_
  std::vector<Term> open_;                            ///< the terms that are being resolved
  Types context_ = Types().set();  ///< the types that the value can have, by what is around
  size_t work_ = 0, num_rules_ = 0;
  int depth_ = 0;
};

void add_term(Terms& terms, const Term& term);
extern const Json kNoSchema;  ///< the schema false

/// The texts of a rule, not negated.
Expr texts_of(Expressions& e, const StringRule& rule, Coding coding,
              const SchemaDocument& document);

// -- schema_keywords.cpp

/// The meaning of a keyword, or its opposite. A schema is the product of its keywords; the opposite
/// of a schema is the union of their opposites.
Alternatives expand_keyword(Schemas& schemas, const Json& schema, std::string_view keyword,
                            bool negated = false);
Alternatives expand_term(Schemas& schemas, const Term& term);
/// Types outside of which no value satisfies the term, as far as that is easy to see.
Types possible_types(Schemas& schemas, const Term& term, int depth = 0);

}  // namespace nanovllm::grammar
