#include "nanovllm/text/grammar/schema_keywords.h"

#include <algorithm>
#include <cmath>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"

namespace nanovllm::grammar {

namespace {

const Json kAnything = true;
constexpr std::string_view kNoOpposite =
    "is not supported inside of not, oneOf, if or dependencies";

Types only(Type type) { return Types(1ULL << type); }

Alternatives joined(std::vector<Alternatives> parts) {
  Alternatives result;
  for (Alternatives& part : parts) std::move(part.begin(), part.end(), std::back_inserter(result));
  return result;
}

Alternatives no_effect(bool negated) {
  return negated ? Alternatives{} : Alternatives{Alternative{}};
}

/// A value as alternatives. Lists and objects are written as schemas with the same meaning.
Alternative equal_to(const Json& value, size_t order) {
  Alternative a;
  if (value.is_null()) a.types = only(kNull);
  else if (value.is_boolean()) a.types = only(value.get<bool>() ? kTrue : kFalse);
  else if (value.is_array()) {
    a.types = only(kArray);
    ArrayRules rules;
    for (const Json& element : value) rules.prefix.push_back({&element, Term::Kind::kValue});
    a.items.min = a.items.max = static_cast<uint32_t>(value.size());
    a.arrays.push_back(std::make_shared<ArrayRules>(std::move(rules)));
  } else if (value.is_object()) {
    a.types = only(kObject);
    ObjectRules rules;
    rules.order = order;
    for (const auto& [key, member] : value.items()) {
      rules.add(key, {&member, Term::Kind::kValue});
      rules.required.push_back(key);
    }
    rules.additional = Term{&kNoSchema};
    a.objects.push_back(std::make_shared<ObjectRules>(std::move(rules)));
  } else {
    a.types = only(kString) | kNumbers;
    a.values = {&value};
  }
  return a;
}

}  // namespace

bool is_integer(const Json& number) {
  if (number.is_number_integer()) return true;
  const double value = number.get<double>();
  return value == std::trunc(value) && std::abs(value) < 0x1p53;
}

std::string decimal(const Json& number) {
  return is_integer(number) && number.is_number_float() ? std::to_string(number.get<int64_t>())
                                                        : number.dump();
}

size_t num_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

Keywords::Handler Keywords::handler(std::string_view keyword) {
  static const std::unordered_map<std::string_view, Handler> kHandlers = {
      {"type", &Keywords::types},
      {"enum", &Keywords::values},
      {"const", &Keywords::values},
      {"minimum", &Keywords::bound},
      {"maximum", &Keywords::bound},
      {"exclusiveMinimum", &Keywords::bound},
      {"exclusiveMaximum", &Keywords::bound},
      {"multipleOf", &Keywords::multiple_of},
      {"minLength", &Keywords::limit},
      {"maxLength", &Keywords::limit},
      {"minItems", &Keywords::limit},
      {"maxItems", &Keywords::limit},
      {"minProperties", &Keywords::limit},
      {"maxProperties", &Keywords::limit},
      {"pattern", &Keywords::string_rule},
      {"format", &Keywords::string_rule},
      {"properties", &Keywords::object_rules},
      {"patternProperties", &Keywords::object_rules},
      {"additionalProperties", &Keywords::object_rules},
      {"required", &Keywords::required},
      {"propertyNames", &Keywords::property_names},
      {"prefixItems", &Keywords::array_rules},
      {"items", &Keywords::array_rules},
      {"additionalItems", &Keywords::array_rules},
      {"uniqueItems", &Keywords::unique_items},
      {"unevaluatedItems", &Keywords::unevaluated},
      {"unevaluatedProperties", &Keywords::unevaluated},
      {"$ref", &Keywords::reference},
      {"allOf", &Keywords::combination},
      {"anyOf", &Keywords::combination},
      {"oneOf", &Keywords::one_of},
      {"not", &Keywords::opposite},
      {"if", &Keywords::condition},
      {"dependencies", &Keywords::dependencies},
      {"dependentRequired", &Keywords::dependencies},
      {"dependentSchemas", &Keywords::dependencies},
      {"contains", &Keywords::not_supported},
      {"$dynamicRef", &Keywords::not_supported},
      {"$recursiveRef", &Keywords::not_supported},
  };
  const auto it = kHandlers.find(keyword);
  return it == kHandlers.end() ? nullptr : it->second;
}

Alternatives Keywords::expand(const Term& term) {
  if (term.kind == Term::Kind::kValue) return {equal_to(*term.json, schemas_.num_rules_++)};
  const Json& schema = *term.json;
  const bool negated = term.kind == Term::Kind::kNot;
  if (schema.is_boolean()) return no_effect(schema.get<bool>() == negated);
  if (!schema.is_object())
    fail("{}: a schema is an object or a boolean, not {}", schemas_.document().place(schema),
         printable(schema));
  const bool only_ref = schemas_.document().is_old() && schema.contains("$ref");
  const Types outer_context = schemas_.context_;
  schemas_.context_ &= possible_types(term);
  std::vector<Alternatives> factors;
  for (const auto& [keyword, value] : schema.items()) {
    const Handler handler = Keywords::handler(keyword);
    if (handler == nullptr || (only_ref && keyword != "$ref")) continue;
    factors.push_back((this->*handler)({schema, keyword, value, negated}));
  }
  Alternatives result = negated ? joined(std::move(factors)) : schemas_.product(std::move(factors));
  for (Alternative& a : result) a.types &= schemas_.context_;
  std::erase_if(result, [](const Alternative& a) { return a.types.none(); });
  schemas_.context_ = outer_context;
  return result;
}

Types Keywords::possible_types(const Term& term, int depth) {
  constexpr int kMaxDepth = 3;
  Types types = Types().set();
  const Json& schema = *term.json;
  if (term.kind != Term::Kind::kSchema || !schema.is_object() || depth > kMaxDepth) return types;
  if (schema.contains("$ref")) {
    types = possible_types({&schemas_.document().target(schema)}, depth + 1);
    if (schemas_.document().is_old()) return types;
  }
  if (schema.contains("type")) types &= named_types({schema, "type", schema["type"], false});
  if (schema["allOf"].is_array())
    for (const Json& part : schema["allOf"]) types &= possible_types({&part}, depth + 1);
  return types;
}

Alternatives Keywords::branch(const Json& schema, bool negated) {
  return schemas_.resolve({&schema, negated ? Term::Kind::kNot : Term::Kind::kSchema});
}

/// Any value; but where one of these types is possible, the keyword is refused.
Alternatives Keywords::without(const Use& use, Types types, std::string_view why) const {
  Alternative a;
  a.unsupported.push_back({types, &use.schema, use.keyword, why});
  if (use.negated) a.types = types;
  return {std::move(a)};
}

Alternative Keywords::with(ObjectRules rules) const {
  rules.order = schemas_.num_rules_++;
  Alternative a;
  a.objects.push_back(std::make_shared<ObjectRules>(std::move(rules)));
  return a;
}

const Json& Keywords::list(const Use& use) const {
  if (!use.value.is_array()) wrong(use, "must be a list");
  return use.value;
}

bool Keywords::is_trivial(const Json& schema) {
  return schema == kAnything || (schema.is_object() && schema.empty());
}

/// Whether no keyword before this one is given. Keywords that are understood together are read
/// when the first of them is seen.
bool Keywords::is_first(const Use& use, std::initializer_list<std::string_view> keywords) const {
  for (const std::string_view keyword : keywords)
    if (use.schema.contains(keyword)) return keyword == use.keyword;
  return false;
}

Types Keywords::named_types(const Use& use) {
  static const std::unordered_map<std::string_view, Types> kTypes = {
      {"null", only(kNull)},     {"boolean", only(kFalse) | only(kTrue)},
      {"number", kNumbers},      {"integer", only(kInteger)},
      {"string", only(kString)}, {"array", only(kArray)},
      {"object", only(kObject)}};
  Types types;
  const auto add = [&](const Json& name) {
    const auto it = name.is_string() ? kTypes.find(name.string()) : kTypes.end();
    if (it == kTypes.end()) wrong(use, fmt::format("{} is not a type of JSON", printable(name)));
    types |= it->second;
  };
  if (use.value.is_array())
    for (const Json& name : use.value) add(name);
  else add(use.value);
  if (use.schema["nullable"] == kAnything) types.set(kNull);  // OpenAPI 3.0
  return types;
}

Alternatives Keywords::types(const Use& use) {
  Alternative a;
  a.types = use.negated ? ~named_types(use) : named_types(use);
  return a.types.any() ? Alternatives{std::move(a)} : Alternatives{};
}

Alternatives Keywords::values(const Use& use) {
  const bool is_enum = use.keyword == "enum";
  const size_t num = is_enum ? list(use).size() : 1;
  Alternative scalars;
  Alternatives result;
  scalars.types.reset();
  scalars.values.emplace();
  for (size_t i = 0; i < num; ++i) {
    const Json& value = is_enum ? use.value[i] : use.value;
    Alternative a = equal_to(value, schemas_.num_rules_++);
    if (value.is_structured()) {
      result.push_back(std::move(a));
      continue;
    }
    scalars.types |= a.types;
    if (a.values) scalars.values->push_back(&value);
  }
  if (!use.negated) {
    if (scalars.types.any() && schemas_.is_possible(scalars))
      result.insert(result.begin(), std::move(scalars));
    return result;
  }
  Alternative others;
  if (!result.empty()) others = without(use, only(kArray) | only(kObject), kNoOpposite)[0];
  others.types = ~(scalars.types & ~kNumbers & ~only(kString));
  others.excluded = std::move(*scalars.values);
  return {std::move(others)};
}

Alternatives Keywords::bound(const Use& use) {
  const bool is_min = use.keyword == "minimum" || use.keyword == "exclusiveMinimum";
  bool exclusive = use.keyword.starts_with("exclusive");
  if (exclusive && use.value.is_boolean()) return no_effect(use.negated);  // draft 4
  if (!use.value.is_number()) wrong(use, "must be a number");
  if (!exclusive)  // draft 4
    exclusive = use.schema[is_min ? "exclusiveMinimum" : "exclusiveMaximum"] == kAnything;
  Alternative a;
  if (use.negated) a.types = kNumbers;
  if (is_min != use.negated) a.min = &use.value, a.min_exclusive = exclusive != use.negated;
  else a.max = &use.value, a.max_exclusive = exclusive != use.negated;
  return {std::move(a)};
}

Alternatives Keywords::multiple_of(const Use& use) {
  if (!use.value.is_number() || !(use.value > Json(0))) wrong(use, "must be a number above 0");
  if (use.negated) return without(use, kNumbers, kNoOpposite);
  Alternative a;
  a.multiples.push_back(&use.value);
  return {std::move(a)};
}

Alternatives Keywords::limit(const Use& use) {
  const Json& value = use.value;
  if (!value.is_number() || value < Json(0) ||
      value.get<double>() != std::trunc(value.get<double>()))
    wrong(use, "must be a whole number of at least 0");
  const auto count = static_cast<uint32_t>(std::min<double>(value.get<double>(), kUnlimited - 1));
  Alternative a;
  const Type type = use.keyword.ends_with("Length")  ? kString
                    : use.keyword.ends_with("Items") ? kArray
                                                     : kObject;
  Limits& limits = type == kString ? a.lengths : type == kArray ? a.items : a.members;
  const bool is_min = use.keyword.starts_with("min");
  if (!use.negated) (is_min ? limits.min : limits.max) = count;
  else {
    a.types = only(type);
    if (is_min && count == 0) return {};
    if (is_min) limits.max = count - 1;
    else limits.min = count + 1;
  }
  return {std::move(a)};
}

Alternatives Keywords::string_rule(const Use& use) {
  if (!use.value.is_string()) wrong(use, "must be a text");
  Alternative a;
  a.strings.push_back({&use.schema, use.keyword == "pattern" ? "pattern" : "format", use.negated});
  if (use.negated) a.types = only(kString);
  return {std::move(a)};
}

Alternatives Keywords::object_rules(const Use& use) {
  if (!is_first(use, {"properties", "patternProperties", "additionalProperties"}))
    return no_effect(use.negated);
  ObjectRules rules;
  for (const char* const keyword : {"properties", "patternProperties"}) {
    const Json& value = use.schema[keyword];
    if (!value.is_object() && use.schema.contains(keyword))
      schemas_.document().refuse(use.schema, keyword, "must be an object");
    for (const auto& [name, schema] : value.items())
      if (keyword[1] == 'r') rules.add(name, {&schema});
      else rules.patterns.emplace_back(name, Term{&schema});
  }
  const auto additional = use.schema.find("additionalProperties");
  if (additional != use.schema.end()) rules.additional = Term{&*additional};
  if (!use.negated) return {with(std::move(rules))};
  Alternatives result;
  for (const auto& [name, term] : rules.properties) {
    if (is_trivial(*term.json)) continue;
    ObjectRules wrong_member;
    wrong_member.required.push_back(name);
    wrong_member.add(name, {term.json, Term::Kind::kNot});
    result.push_back(with(std::move(wrong_member)));
    result.back().types = only(kObject);
  }
  if (!rules.patterns.empty() || (rules.additional && !is_trivial(*rules.additional->json)))
    result.push_back(without(use, only(kObject), kNoOpposite)[0]);
  return result;
}

Alternatives Keywords::required(const Use& use) {
  ObjectRules all;
  Alternatives result;
  for (const Json& name : list(use)) {
    if (!name.is_string()) wrong(use, "must be a list of texts");
    all.required.push_back(name.string());
    ObjectRules absent;
    absent.add(name.string(), {&kNoSchema});
    if (!use.negated) continue;
    result.push_back(with(std::move(absent)));
    result.back().types = only(kObject);
  }
  return use.negated ? result : Alternatives{with(std::move(all))};
}

Alternatives Keywords::property_names(const Use& use) {
  if (use.negated)
    return is_trivial(use.value) ? Alternatives{} : without(use, only(kObject), kNoOpposite);
  ObjectRules rules;
  rules.names = Term{&use.value};
  return {with(std::move(rules))};
}

Alternatives Keywords::array_rules(const Use& use) {
  if (!is_first(use, {"prefixItems", "items", "additionalItems"})) return no_effect(use.negated);
  const Json& schema = use.schema;
  const bool is_old_list = schema["items"].is_array();  // of the drafts before 2020-12
  const char* const prefix = is_old_list ? "items" : "prefixItems";
  const char* const rest = is_old_list ? "additionalItems" : "items";
  ArrayRules rules;
  if (schema.contains(prefix))
    for (const Json& element : list({schema, prefix, schema[prefix], use.negated}))
      rules.prefix.push_back({&element});
  if (schema.contains(rest)) rules.rest = Term{&schema[rest]};
  if (!use.negated) {
    Alternative a;
    a.arrays.push_back(std::make_shared<ArrayRules>(std::move(rules)));
    return {std::move(a)};
  }
  Alternatives result;
  for (size_t i = 0; i < rules.prefix.size(); ++i) {
    if (is_trivial(*rules.prefix[i].json)) continue;
    ArrayRules wrong_element{std::vector<Term>(i, Term{&kAnything}), std::nullopt};
    wrong_element.prefix.push_back({rules.prefix[i].json, Term::Kind::kNot});
    Alternative& a = result.emplace_back();
    a.types = only(kArray);
    a.items.min = static_cast<uint32_t>(i + 1);
    a.arrays.push_back(std::make_shared<ArrayRules>(std::move(wrong_element)));
  }
  if (rules.rest && !is_trivial(*rules.rest->json))
    result.push_back(without(use, only(kArray), kNoOpposite)[0]);
  return result;
}

Alternatives Keywords::unique_items(const Use& use) {
  if (use.value == kAnything) return without(use, only(kArray), "is not supported");
  return no_effect(use.negated);
}

Alternatives Keywords::unevaluated(const Use& use) {
  if (is_trivial(use.value)) return no_effect(use.negated);
  return without(use, only(use.keyword.ends_with("Items") ? kArray : kObject), "is not supported");
}

Alternatives Keywords::reference(const Use& use) {
  return branch(schemas_.document().target(use.schema), use.negated);
}

/// allOf and anyOf. The opposite of "any" is that all are wrong, and that of "all" that any is.
Alternatives Keywords::combination(const Use& use) {
  std::vector<Alternatives> branches;
  for (const Json& schema : list(use)) branches.push_back(branch(schema, use.negated));
  return (use.keyword == "allOf") != use.negated ? schemas_.product(std::move(branches))
                                                 : joined(std::move(branches));
}

/// One branch, and none of the others that share a value with it. The opposite: none, or two.
Alternatives Keywords::one_of(const Use& use) {
  const size_t num = list(use).size();
  std::vector<Alternatives> branches, opposites(num), results;
  for (const Json& schema : use.value) branches.push_back(branch(schema, false));
  std::vector<std::vector<size_t>> overlaps(num);
  for (size_t i = 0; i < num; ++i)
    for (size_t j = 0; j < i; ++j) {
      Alternatives two = schemas_.product(branches[i], branches[j]);
      if (two.empty()) continue;
      overlaps[i].push_back(j);
      overlaps[j].push_back(i);
      if (use.negated) results.push_back(std::move(two));
    }
  for (size_t i = 0; i < num; ++i)
    if (use.negated || !overlaps[i].empty()) opposites[i] = branch(use.value[i], true);
  if (use.negated) results.push_back(schemas_.product(opposites));
  else
    for (size_t i = 0; i < num; ++i) {
      std::vector<Alternatives> factors = {std::move(branches[i])};
      for (const size_t j : overlaps[i]) factors.push_back(opposites[j]);
      results.push_back(schemas_.product(std::move(factors)));
    }
  return joined(std::move(results));
}

Alternatives Keywords::opposite(const Use& use) { return branch(use.value, !use.negated); }

/// if, then, else: both hold, or the condition is wrong and `else` holds.
Alternatives Keywords::condition(const Use& use) {
  const auto part = [&](std::string_view keyword) {
    const auto it = use.schema.find(keyword);
    return branch(it == use.schema.end() ? kAnything : *it, use.negated);
  };
  return joined({schemas_.product(branch(use.value, false), part("then")),
                 schemas_.product(branch(use.value, true), part("else"))});
}

/// For each name: it is absent, or the others are there, or the schema holds. Where `properties`
/// does not say which comes first, both orders are possible.
Alternatives Keywords::dependencies(const Use& use) {
  if (!use.value.is_object()) wrong(use, "must be an object");
  std::vector<Alternatives> factors;
  for (const auto& [name, needed] : use.value.items()) {
    const auto present = [&] {
      ObjectRules rules;
      rules.required.push_back(name);
      Alternatives there = {with(std::move(rules))};
      there[0].types = only(kObject);
      return there;
    };
    const auto then = [&] {
      return needed.is_array() ? required({use.schema, use.keyword, needed, use.negated})
                               : branch(needed, use.negated);
    };
    ObjectRules absent;
    absent.add(name, {&kNoSchema});
    const Alternatives there = present();
    std::vector<Alternatives> choices = {schemas_.product(there, then())};
    if (!use.schema["properties"].is_object() || !use.schema["properties"].contains(name)) {
      const Alternatives before = then();
      choices.push_back(schemas_.product(before, present()));
    }
    if (!use.negated) choices.push_back({with(std::move(absent))});
    factors.push_back(joined(std::move(choices)));
  }
  return use.negated ? joined(std::move(factors)) : schemas_.product(std::move(factors));
}

Alternatives Keywords::not_supported(const Use& use) {
  if (use.keyword == "contains") return without(use, only(kArray), "is not supported");
  wrong(use, "is not supported");
}

}  // namespace nanovllm::grammar
