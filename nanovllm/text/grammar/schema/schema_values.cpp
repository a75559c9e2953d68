#include "nanovllm/text/grammar/schema/schema_values.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/regex/numbers.h"
#include "nanovllm/text/grammar/regex/regex.h"

namespace nanovllm::grammar {

namespace {

constexpr size_t kMaxSchemas = 50'000;

}  // namespace

SchemaValues::SchemaValues(Expressions& e, const SchemaDocument& document,
                           const JsonSchemaOptions& options, const std::string& where)
    : e_(e), options_(options), schemas_(document), json_(e, options, where) {}

Expr SchemaValues::build(const Terms& terms) {
  const Expr start = value(terms);
  while (!waiting_.empty()) {
    const auto [rule, alternatives] = std::move(waiting_.front());
    waiting_.pop_front();
    std::vector<Expr> values;
    for (const Alternative& a : alternatives) values.push_back(value(a));
    e_.define(rule, e_.any_of(values));
  }
  return start;
}

Expr SchemaValues::value(const Terms& terms) {
  if (const auto it = built_.find(terms); it != built_.end()) return it->second;
  require(built_.size() < kMaxSchemas, "{}: more than {} schemas, counting each combination",
          schemas_.document().where(), kMaxSchemas);
  Alternatives alternatives = schemas_.expand(terms);
  const bool is_structured =
      std::any_of(alternatives.begin(), alternatives.end(),
                  [](const Alternative& a) { return a.types[kArray] || a.types[kObject]; });
  Expr built = Expr::kNothing;
  if (is_structured) {
    built = e_.new_rule("value");
    waiting_.emplace_back(built, std::move(alternatives));
  } else {
    std::vector<Expr> values;
    for (const Alternative& a : alternatives) values.push_back(value(a));
    built = e_.any_of(values);
  }
  built_.emplace(terms, built);
  return built;
}

Expr SchemaValues::value(const Alternative& a) {
  for (const Unsupported& u : a.unsupported) {
    const bool is_unique = u.keyword == "uniqueItems" && a.items.max <= 1;
    if ((u.types & a.types).any() && !is_unique)
      schemas_.document().refuse(*u.schema, u.keyword, u.why);
  }
  std::vector<Expr> values;
  if (a.types[kNull]) values.push_back(e_.text("null"));
  if (a.types[kFalse]) values.push_back(e_.text("false"));
  if (a.types[kTrue]) values.push_back(e_.text("true"));
  if (a.values)
    for (const Json* value : *a.values) values.push_back(written_value(*value));
  else {
    if ((a.types & kNumbers).any()) values.push_back(number(a));
    if (a.types[kString]) values.push_back(string(a));
  }
  if (a.types[kArray]) values.push_back(array(a));
  if (a.types[kObject]) values.push_back(object(a));
  return e_.any_of(values);
}

Expr SchemaValues::written_value(const Json& value) {
  if (value.is_string()) return json_.quoted(e_, value.string());
  return e_.any_of({e_.text(value.dump()), e_.text(number_text(value))});
}

Expr SchemaValues::number(const Alternative& a) {
  const std::string& where = schemas_.document().where();
  NumberForm form;
  form.integer = !a.types[kFraction];
  if (a.min != nullptr) form.min = Bound{a.min->dump(), a.min_exclusive};
  if (a.max != nullptr) form.max = Bound{a.max->dump(), a.max_exclusive};
  const auto build = [&](const Json* origin) {
    if (origin == nullptr) return grammar::number(e_, form, where);
    return schemas_.document().located(
        *origin, [&](const std::string& place) { return grammar::number(e_, form, place); });
  };
  Expr result = build(a.min != nullptr ? a.min : a.max);
  for (const Json* divisor : a.multiples) {
    form.multiple_of = divisor->dump();
    const Expr multiples = build(divisor);
    result = divisor == a.multiples.front() ? multiples : e_.both(result, multiples);
  }
  if (!a.types[kInteger])  // only those with a fraction
    result = e_.both(result, parse_regex(e_, "-?[0-9]+\\.[0-9]*[1-9][0-9]*", {}, where));
  for (const Json* excluded : a.excluded) {
    if (!excluded->is_number()) continue;
    NumberForm less, greater;
    less.max = greater.min = Bound{excluded->dump(), true};
    result = e_.both(
        result, e_.any_of({grammar::number(e_, less, where), grammar::number(e_, greater, where)}));
  }
  return result;
}

Expr SchemaValues::string(const Alternative& a) {
  const bool is_free = a.strings.empty() && std::none_of(a.excluded.begin(), a.excluded.end(),
                                                         [](auto* v) { return v->is_string(); });
  if (!is_free) return json_.quoted(e_, string_body(a));
  return json_.quoted(e_, e_.repeat(json_.free_character, a.lengths.min, a.lengths.max));
}

Expr SchemaValues::string_body(const Alternative& a) {
  std::vector<Expr> texts;
  if (a.values) {
    for (const Json* value : *a.values)
      if (value->is_string()) texts.push_back(string_text(e_, value->string()));
    return e_.any_of(texts);
  }
  const bool is_plain = std::none_of(a.strings.begin(), a.strings.end(),
                                     [](const StringRule& rule) { return !rule.negated; });
  // A pattern is costly to count in, so characters are only counted where there is a limit.
  Expr body = is_plain || a.lengths != Limits{}
                  ? e_.repeat(json_.character, a.lengths.min, a.lengths.max)
                  : Expr::kAny;
  for (const StringRule& rule : a.strings) {
    const Expr all = texts_of(e_, rule, Coding::kJsonString, schemas_.document());
    const Expr part = rule.negated ? e_.complement(all) : all;
    body = body == Expr::kAny ? part : e_.both(body, part);
  }
  for (const Json* value : a.excluded)
    if (value->is_string()) texts.push_back(string_text(e_, value->string()));
  return texts.empty() ? body : e_.both(body, e_.complement(e_.any_of(texts)));
}

}  // namespace nanovllm::grammar
