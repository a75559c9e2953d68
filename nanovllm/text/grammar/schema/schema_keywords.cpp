#include "nanovllm/text/grammar/schema/schema_keywords.h"

#include <algorithm>
#include <cmath>

#include "nanovllm/base/check.h"

namespace nanovllm::grammar {

namespace keywords {

Alternatives without(const Use& use, Types types, std::string_view why) {
  Alternative a;
  a.unsupported.push_back({types, &use.schema, use.keyword, why});
  if (use.negated) a.types = types;
  return {std::move(a)};
}

Alternative with_rules(Schemas& schemas, ObjectRules rules) {
  Alternative a;
  rules.order += schemas.next_order();
  a.objects.push_back(std::make_shared<ObjectRules>(std::move(rules)));
  return a;
}

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

Alternative without_member(Schemas& schemas, std::string_view name) {
  ObjectRules rules;
  rules.add(name, {&kNoSchema});
  rules.order = ObjectRules::kLast;
  return with_rules(schemas, std::move(rules));
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

namespace {

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
    rules.order = ObjectRules::kLast;
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
  static const std::vector<std::pair<Handler, std::vector<std::string_view>>> kGroups = {
      {type, {"type"}},
      {values, {"enum", "const"}},
      {bound, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
      {multiple_of, {"multipleOf"}},
      {limit, {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}},
      {string_rule, {"pattern", "format"}},
      {object_rules, {"properties", "patternProperties", "additionalProperties"}},
      {required, {"required"}},
      {property_names, {"propertyNames"}},
      {array_rules, {"prefixItems", "items", "additionalItems"}},
      {reference, {"$ref"}},
      {combination, {"allOf", "anyOf"}},
      {one_of, {"oneOf"}},
      {opposite, {"not"}},
      {condition, {"if"}},
      {dependencies, {"dependencies", "dependentRequired", "dependentSchemas"}},
      {not_supported, {"contains", "uniqueItems", "unevaluatedItems", "unevaluatedProperties"}},
      {not_supported, {"$dynamicRef", "$recursiveRef"}}};
  static const auto kHandlers = [] {
    std::unordered_map<std::string_view, Handler> handlers;
    for (const auto& [handler, keywords] : kGroups)
      for (const std::string_view name : keywords) handlers.emplace(name, handler);
    return handlers;
  }();
  const auto it = kHandlers.find(keyword);
  return it == kHandlers.end() ? nullptr : it->second;
}

}  // namespace

}  // namespace keywords

Alternatives expand_keyword(Schemas& schemas, const Json& schema, std::string_view keyword,
                            bool negated) {
  return keywords::handler(keyword)({schemas, schema, keyword, schema[keyword], negated});
}

Alternatives expand_term(Schemas& schemas, const Term& term) {
  if (term.kind == Term::Kind::kValue) return {keywords::equal_to(schemas, *term.json)};
  const Json& schema = *term.json;
  const bool negated = term.kind == Term::Kind::kNot;
  if (schema.is_boolean()) return keywords::no_effect((schema == keywords::kAnything) == negated);
  if (!schema.is_object())
    fail("{}: a schema is an object or a boolean, not {}", schemas.document().place(schema),
         printable(schema));
  const bool only_ref = schemas.document().is_old() && schema.contains("$ref");
  std::vector<Alternatives> factors;
  for (const auto& [keyword, value] : schema.items())
    if (keywords::handler(keyword) != nullptr && (!only_ref || keyword == "$ref"))
      factors.push_back(expand_keyword(schemas, schema, keyword, negated));
  return negated ? keywords::joined(std::move(factors)) : schemas.product(std::move(factors));
}

Types possible_types(Schemas& schemas, const Term& term, int depth) {
  constexpr int kMaxLevels = 3;
  Types types = Types().set();
  const Json& schema = *term.json;
  if (term.kind != Term::Kind::kSchema || !schema.is_object() || depth > kMaxLevels) return types;
  if (schema.contains("$ref")) {
    types = possible_types(schemas, {&schemas.document().target(schema)}, depth + 1);
    if (schemas.document().is_old()) return types;
  }
  if (schema.contains("type"))
    types &= keywords::named_types({schemas, schema, "type", schema["type"]});
  if (schema["allOf"].is_array())
    for (const Json& part : schema["allOf"]) types &= possible_types(schemas, {&part}, depth + 1);
  return types;
}

}  // namespace nanovllm::grammar
