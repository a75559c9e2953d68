#include <algorithm>
#include <cmath>

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/schema.h"

namespace nanovllm::grammar {

namespace keywords {
namespace {

constexpr std::string_view kNoOpposite =
    "is not supported inside of not, oneOf, if or dependencies";
const Json kAnything = true;

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

Types only(Type type) { return Types(1ULL << type); }

Alternatives no_effect(bool negated) {
  return negated ? Alternatives{} : Alternatives{Alternative{}};
}

bool is_trivial(const Json& schema) {
  return schema == kAnything || (schema.is_object() && schema.empty());
}

Alternatives joined(std::vector<Alternatives> parts) {
  Alternatives result;
  for (Alternatives& part : parts) std::move(part.begin(), part.end(), std::back_inserter(result));
  return result;
}

/// Any value; but where one of these types is possible, the keyword is refused.
Alternatives without(const Use& use, Types types, std::string_view why) {
  Alternative a;
  a.unsupported.push_back({types, &use.schema, use.keyword, why});
  if (use.negated) a.types = types;
  return {std::move(a)};
}

/// Objects with these rules, and all values that are no objects.
Alternative with_rules(Schemas& schemas, ObjectRules rules) {
  Alternative a;
  rules.order += schemas.next_order();
  a.objects.push_back(std::make_shared<ObjectRules>(std::move(rules)));
  return a;
}

/// Objects with a member that satisfies the term. Members that are named like this come last.
Alternative with_member(Schemas& schemas, std::string_view name, const Term& term) {
  ObjectRules rules;
  rules.required.push_back(name);
  if (!is_trivial(*term.json)) {
    rules.add(name, term);
    rules.order = ObjectRules::kLast;
  }
  Alternative a = with_rules(schemas, std::move(rules));
  a.types = only(kObject);
  return a;
}

/// All values but objects with this member.
Alternative without_member(Schemas& schemas, std::string_view name) {
  ObjectRules rules;
  rules.add(name, {&kNoSchema});
  rules.order = ObjectRules::kLast;
  return with_rules(schemas, std::move(rules));
}

/// A value as conditions. Arrays and objects are written as schemas with the same meaning.
Alternative equal_to(Schemas& schemas, const Json& value) {
  Alternative a;
  if (value.is_null()) a.types = only(kNull);
  else if (value.is_boolean()) a.types = only(value == kAnything ? kTrue : kFalse);
  else if (value.is_array()) {
    a.types = only(kArray);
    ArrayRules rules;
    for (const Json& element : value) rules.prefix.push_back({&element, Term::Kind::kValue});
    a.items.min = a.items.max = static_cast<uint32_t>(value.size());
    a.arrays.push_back(std::make_shared<ArrayRules>(std::move(rules)));
  } else if (value.is_object()) {
    ObjectRules rules;
    for (const auto& [key, member] : value.items()) {
      rules.add(key, {&member, Term::Kind::kValue});
      rules.required.push_back(key);
    }
    rules.additional = Term{&kNoSchema};
    a = with_rules(schemas, std::move(rules));
    a.types = only(kObject);
  } else {
    a.types = only(kString) | kNumbers;
    a.values = {&value};
  }
  return a;
}

// -- Conditions on values.

Types named_types(const Use& use) {
  static const std::unordered_map<std::string_view, Types> kTypes = {
      {"null", only(kNull)},     {"boolean", only(kFalse) | only(kTrue)},
      {"number", kNumbers},      {"integer", only(kInteger)},
      {"string", only(kString)}, {"array", only(kArray)},
      {"object", only(kObject)}};
  Types types;
  const auto add = [&](const Json& name) {
    const auto it = name.is_string() ? kTypes.find(name.string()) : kTypes.end();
    if (it == kTypes.end()) use.refuse(fmt::format("{} is no type of JSON", printable(name)));
    types |= it->second;
  };
  if (use.value.is_array())
    for (const Json& name : use.value) add(name);
  else add(use.value);
  if (use.schema["nullable"] == kAnything) types.set(kNull);  // OpenAPI 3.0
  return types;
}

Alternatives type(const Use& use) {
  Alternative a;
  a.types = use.negated ? ~named_types(use) : named_types(use);
  return {std::move(a)};
}

Alternatives values(const Use& use) {
  const bool is_enum = use.keyword == "enum";
  Alternatives result;
  Alternative scalars;
  scalars.types.reset();
  scalars.values.emplace();
  for (size_t i = 0; i < (is_enum ? use.list().size() : 1); ++i) {
    const Json& value = is_enum ? use.value[i] : use.value;
    Alternative a = equal_to(use.schemas, value);
    if (!value.is_structured()) scalars.types |= a.types;
    if (a.values) scalars.values->push_back(&value);
    if (value.is_structured()) result.push_back(std::move(a));
  }
  if (!use.negated) {
    result.insert(result.begin(), std::move(scalars));
    return result;
  }
  Alternative others;
  if (!result.empty()) others = without(use, only(kArray) | only(kObject), kNoOpposite)[0];
  others.types = ~(scalars.types & ~kNumbers & ~only(kString));
  others.excluded = std::move(*scalars.values);
  return {std::move(others)};
}

Alternatives bound(const Use& use) {
  const bool is_min = use.keyword.ends_with("inimum");
  bool exclusive = use.keyword.starts_with("exclusive");
  if (exclusive && use.value.is_boolean()) return no_effect(use.negated);  // draft 4
  if (!use.value.is_number()) use.refuse("must be a number");
  exclusive |= use.schema[is_min ? "exclusiveMinimum" : "exclusiveMaximum"] == kAnything;
  Alternative a;
  if (use.negated) a.types = kNumbers;
  if (is_min != use.negated) a.min = &use.value, a.min_exclusive = exclusive != use.negated;
  else a.max = &use.value, a.max_exclusive = exclusive != use.negated;
  return {std::move(a)};
}

Alternatives multiple_of(const Use& use) {
  if (!use.value.is_number() || !(use.value > Json(0))) use.refuse("must be a number above 0");
  if (use.negated) return without(use, kNumbers, kNoOpposite);
  Alternative a;
  a.multiples.push_back(&use.value);
  return {std::move(a)};
}

Alternatives limit(const Use& use) {
  const double value = use.value.is_number() ? use.value.get<double>() : -1;
  if (value < 0 || value != std::trunc(value)) use.refuse("must be a whole number of at least 0");
  const auto count = static_cast<uint32_t>(std::min<double>(value, kUnlimited - 1));
  Alternative a;
  const Type type = use.keyword.ends_with("Length")  ? kString
                    : use.keyword.ends_with("Items") ? kArray
                                                     : kObject;
  Limits& limits = type == kString ? a.lengths : type == kArray ? a.items : a.members;
  const bool is_min = use.keyword.starts_with("min");
  if (use.negated) a.types = only(type);
  if (is_min && use.negated && count == 0) return {};
  if (is_min && use.negated) limits.max = count - 1;
  else if (is_min) limits.min = count;
  else if (use.negated) limits.min = count + 1;
  else limits.max = count;
  return {std::move(a)};
}

Alternatives string_rule(const Use& use) {
  if (!use.value.is_string()) use.refuse("must be a text");
  Alternative a;
  a.strings.push_back({use.value.string(), &use.value, use.keyword == "format", use.negated});
  if (use.negated) a.types = only(kString);
  return {std::move(a)};
}

// -- Conditions on the parts of values.

Alternatives object_rules(const Use& use) {
  if (!use.is_first({"properties", "patternProperties", "additionalProperties"}))
    return no_effect(use.negated);
  ObjectRules rules;
  for (const char* const keyword : {"properties", "patternProperties"}) {
    const Use members = use.with(keyword);
    if (!use.schema.contains(keyword)) continue;
    if (!members.value.is_object()) members.refuse("must be an object");
    for (const auto& [name, schema] : members.value.items())
      if (members.keyword == "properties") rules.add(name, {&schema});
      else rules.patterns.emplace_back(name, Term{&schema});
  }
  if (use.schema.contains("additionalProperties"))
    rules.additional = Term{&use.schema["additionalProperties"]};
  if (!use.negated) return {with_rules(use.schemas, std::move(rules))};
  Alternatives result;
  for (const auto& [name, term] : rules.properties)
    if (!is_trivial(*term.json))
      result.push_back(with_member(use.schemas, name, {term.json, Term::Kind::kNot}));
  for (const char* const keyword : {"patternProperties", "additionalProperties"})
    if (use.schema.contains(keyword) && !is_trivial(use.schema[keyword]))
      result.push_back(without(use.with(keyword), only(kObject), kNoOpposite)[0]);
  return result;
}

Alternatives required(const Use& use) {
  ObjectRules all;
  Alternatives result;
  for (const Json& name : use.list()) {
    if (!name.is_string()) use.refuse("must be a list of texts");
    all.required.push_back(name.string());
    if (!use.negated) continue;
    result.push_back(without_member(use.schemas, name.string()));
    result.back().types = only(kObject);
  }
  return use.negated ? result : Alternatives{with_rules(use.schemas, std::move(all))};
}

Alternatives property_names(const Use& use) {
  if (is_trivial(use.value)) return no_effect(use.negated);
  if (use.negated) return without(use, only(kObject), kNoOpposite);
  ObjectRules rules;
  rules.names = Term{&use.value};
  return {with_rules(use.schemas, std::move(rules))};
}

Alternatives array_rules(const Use& use) {
  if (!use.is_first({"prefixItems", "items", "additionalItems"})) return no_effect(use.negated);
  const bool is_old_list = use.schema["items"].is_array();  // of the drafts before 2020-12
  const Use prefix = use.with(is_old_list ? "items" : "prefixItems");
  const Use rest = use.with(is_old_list ? "additionalItems" : "items");
  Alternatives result;
  ArrayRules rules;
  if (use.schema.contains(prefix.keyword))
    for (const Json& schema : prefix.list()) {
      if (use.negated && !is_trivial(schema)) {
        ArrayRules wrong = rules;
        wrong.prefix.push_back({&schema, Term::Kind::kNot});
        Alternative& a = result.emplace_back();
        a.types = only(kArray);
        a.items.min = static_cast<uint32_t>(wrong.prefix.size());
        a.arrays.push_back(std::make_shared<ArrayRules>(std::move(wrong)));
      }
      rules.prefix.push_back({use.negated ? &kAnything : &schema});
    }
  if (use.schema.contains(rest.keyword)) rules.rest = Term{&rest.value};
  if (use.negated) {
    if (rules.rest && !is_trivial(rest.value))
      result.push_back(without(rest, only(kArray), kNoOpposite)[0]);
    return result;
  }
  result.emplace_back().arrays.push_back(std::make_shared<ArrayRules>(std::move(rules)));
  return result;
}

// -- Combinations of schemas.

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

/// Keywords of arrays and objects that are refused where these are possible.
Alternatives not_supported(const Use& use) {
  if (use.keyword.starts_with('$')) use.refuse("is not supported");
  const bool is_unique = use.keyword == "uniqueItems";
  if (use.keyword != "contains" && is_trivial(use.value) != is_unique)
    return no_effect(use.negated);
  return without(use, only(use.keyword == "unevaluatedProperties" ? kObject : kArray),
                 "is not supported");
}

using Handler = Alternatives (*)(const Use&);

Handler handler(std::string_view keyword) {
  static const std::unordered_map<std::string_view, Handler> kHandlers = {
      {"type", type},
      {"enum", values},
      {"const", values},
      {"minimum", bound},
      {"maximum", bound},
      {"exclusiveMinimum", bound},
      {"exclusiveMaximum", bound},
      {"multipleOf", multiple_of},
      {"minLength", limit},
      {"maxLength", limit},
      {"minItems", limit},
      {"maxItems", limit},
      {"minProperties", limit},
      {"maxProperties", limit},
      {"pattern", string_rule},
      {"format", string_rule},
      {"properties", object_rules},
      {"patternProperties", object_rules},
      {"additionalProperties", object_rules},
      {"required", required},
      {"propertyNames", property_names},
      {"prefixItems", array_rules},
      {"items", array_rules},
      {"additionalItems", array_rules},
      {"$ref", reference},
      {"allOf", combination},
      {"anyOf", combination},
      {"oneOf", one_of},
      {"not", opposite},
      {"if", condition},
      {"dependencies", dependencies},
      {"dependentRequired", dependencies},
      {"dependentSchemas", dependencies},
      {"contains", not_supported},
      {"uniqueItems", not_supported},
      {"unevaluatedItems", not_supported},
      {"unevaluatedProperties", not_supported},
      {"$dynamicRef", not_supported},
      {"$recursiveRef", not_supported},
  };
  const auto it = kHandlers.find(keyword);
  return it == kHandlers.end() ? nullptr : it->second;
}

}  // namespace
}  // namespace keywords

using namespace keywords;  // NOLINT

Alternatives expand_keyword(Schemas& schemas, const Json& schema, std::string_view keyword,
                            bool negated) {
  return handler(keyword)({schemas, schema, keyword, schema[keyword], negated});
}

Alternatives expand_term(Schemas& schemas, const Term& term) {
  if (term.kind == Term::Kind::kValue) return {equal_to(schemas, *term.json)};
  const Json& schema = *term.json;
  const bool negated = term.kind == Term::Kind::kNot;
  if (schema.is_boolean()) return no_effect((schema == kAnything) == negated);
  if (!schema.is_object())
    fail("{}: a schema is an object or a boolean, not {}", schemas.document().place(schema),
         printable(schema));
  const bool only_ref = schemas.document().is_old() && schema.contains("$ref");
  std::vector<Alternatives> factors;
  for (const auto& [keyword, value] : schema.items())
    if (handler(keyword) != nullptr && (!only_ref || keyword == "$ref"))
      factors.push_back(expand_keyword(schemas, schema, keyword, negated));
  return negated ? joined(std::move(factors)) : schemas.product(std::move(factors));
}

Types possible_types(Schemas& schemas, const Term& term, int depth) {
  constexpr int kMaxDepth = 3;
  Types types = Types().set();
  const Json& schema = *term.json;
  if (term.kind != Term::Kind::kSchema || !schema.is_object() || depth > kMaxDepth) return types;
  if (schema.contains("$ref")) {
    types = possible_types(schemas, {&schemas.document().target(schema)}, depth + 1);
    if (schemas.document().is_old()) return types;
  }
  if (schema.contains("type")) types &= named_types({schemas, schema, "type", schema["type"]});
  if (schema["allOf"].is_array())
    for (const Json& part : schema["allOf"]) types &= possible_types(schemas, {&part}, depth + 1);
  return types;
}

}  // namespace nanovllm::grammar
