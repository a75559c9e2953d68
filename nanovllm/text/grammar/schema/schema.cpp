#include "nanovllm/text/grammar/schema/schema.h"

#include <algorithm>
#include <cmath>

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/regex/formats.h"
#include "nanovllm/text/grammar/regex/numbers.h"
#include "nanovllm/text/grammar/regex/regex.h"
#include "nanovllm/text/grammar/schema/json_text.h"

namespace nanovllm::grammar {

namespace {

constexpr size_t kMaxCombinations = 1000;
constexpr size_t kMaxTerms = 1000;
/// Steps of merging for the whole document, of a few microseconds.
constexpr size_t kMaxWork = 100'000;
/// References and combinations inside of each other, without a member or an element between them.
constexpr size_t kMaxOpen = 100;
/// How deep required members are looked into for a contradiction.
constexpr int kMaxLookAhead = 3;

template <class T>
void add_new(std::vector<T>& to, const std::vector<T>& more) {
  for (const T& value : more)
    if (std::find(to.begin(), to.end(), value) == to.end()) to.push_back(value);
}

Limits intersect(const Limits& a, const Limits& b) {
  return {std::max(a.min, b.min), std::min(a.max, b.max)};
}

Type type_of(const Json& value) {
  return value.is_string() ? kString : is_integer(value) ? kInteger : kFraction;
}

/// Whether a number is a multiple of another one, both as they are written in decimal digits.
bool is_multiple(const Json& value, const Json& divisor, const std::string& where) {
  Expressions e;
  NumberForm form;
  form.multiple_of = divisor.dump();
  Expr state = e.prepare(number(e, form, where));
  for (const char c : number_text(value)) state = e.derive(state, static_cast<uint8_t>(c));
  return e.is_nullable(state);
}

}  // namespace

const Json kNoSchema = false;

Expr texts_of(Expressions& e, const StringRule& rule, Coding coding,
              const SchemaDocument& document) {
  if (rule.is_format) {
    const std::optional<Expr> known = format(e, rule.text, coding);
    if (!known)
      fail("{}: the format \"{}\" is not supported", document.place(*rule.place), rule.text);
    return *known;
  }
  return document.located(*rule.place, [&](const std::string& where) {
    return parse_regex(e, rule.text, {.coding = coding, .anywhere = true}, where);
  });
}

void add_term(Terms& terms, const Term& term) {
  const Json always = term.kind == Term::Kind::kSchema;
  const bool is_trivial = term.kind != Term::Kind::kValue &&
                          (*term.json == always || (term.kind == Term::Kind::kSchema &&
                                                    term.json->is_object() && term.json->empty()));
  if (is_trivial || std::find(terms.begin(), terms.end(), term) != terms.end()) return;
  require(terms.size() < kMaxTerms, "JSON schema: more than {} schemas for one value", kMaxTerms);
  terms.push_back(term);
}

Alternatives Schemas::expand(const Terms& terms) {
  std::vector<Term> outer;
  outer.swap(open_);  // a member or an element may be of the schema that contains it
  const Types outer_context = context_;
  context_.set();
  for (const Term& term : terms) context_ &= possible_types(*this, term);
  std::vector<Alternatives> factors;
  for (const Term& term : terms) factors.push_back(resolve(term));
  Alternatives result = product(std::move(factors));
  context_ = outer_context;
  open_.swap(outer);
  return result;
}

Alternatives Schemas::resolve(const Term& term) {
  if (std::find(open_.begin(), open_.end(), term) != open_.end())
    document_.refuse(*term.json, "$ref", "leads back to itself without a member or an element");
  if (open_.size() >= kMaxOpen)
    fail("{}: more than {} references or combinations in a row", document_.place(*term.json),
         kMaxOpen);
  open_.push_back(term);
  const Types outer_context = context_;
  context_ &= possible_types(*this, term);
  Alternatives result = expand_term(*this, term);
  for (Alternative& a : result) a.types &= context_;
  std::erase_if(result, [](const Alternative& a) { return a.types.none(); });
  context_ = outer_context;
  open_.pop_back();
  return result;
}

std::string Schemas::here() const {
  return document_.place(open_.empty() ? document_.root() : *open_.back().json);
}

void Schemas::count_work(size_t amount) {
  work_ += amount;
  if (work_ > kMaxWork)
    fail("{}: combining the schemas takes more than {} steps", here(), kMaxWork);
}

Alternatives Schemas::product(std::vector<Alternatives> factors) {
  std::stable_sort(factors.begin(), factors.end(),
                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
  Alternatives result = {Alternative{}};
  for (const Alternatives& factor : factors) result = product(result, factor);
  return result;
}

Alternatives Schemas::product(const Alternatives& a, const Alternatives& b) {
  static const Alternatives kAll = {Alternative{}};
  if (b == kAll) return a;
  Alternatives result;
  for (const Alternative& x : a)
    for (const Alternative& y : b) {
      std::optional<Alternative> z = both(x, y);
      if (!z || std::find(result.begin(), result.end(), *z) != result.end()) continue;
      result.push_back(std::move(*z));
      if (result.size() > kMaxCombinations)
        fail("{}: more than {} combinations of alternatives", here(), kMaxCombinations);
    }
  return result;
}

std::optional<Alternative> Schemas::both(const Alternative& a, const Alternative& b) {
  count_work(1 + (a.objects.size() + b.objects.size() + a.arrays.size() + b.arrays.size()) / 8 +
             (a.values && b.values ? a.values->size() * b.values->size() / 100 : 0));
  Alternative c = a;
  c.types &= b.types;
  if (!c.values) c.values = b.values;
  else if (b.values)
    std::erase_if(*c.values, [&](const Json* value) {
      return std::none_of(b.values->begin(), b.values->end(),
                          [&](auto* v) { return *v == *value; });
    });
  add_new(c.excluded, b.excluded);
  if (b.min != nullptr) {
    const auto order = c.min == nullptr ? std::partial_ordering::less : *c.min <=> *b.min;
    if (order == 0) c.min_exclusive |= b.min_exclusive;
    else if (order < 0) c.min = b.min, c.min_exclusive = b.min_exclusive;
  }
  if (b.max != nullptr) {
    const auto order = c.max == nullptr ? std::partial_ordering::greater : *c.max <=> *b.max;
    if (order == 0) c.max_exclusive |= b.max_exclusive;
    else if (order > 0) c.max = b.max, c.max_exclusive = b.max_exclusive;
  }
  add_new(c.multiples, b.multiples);
  add_new(c.strings, b.strings);
  c.lengths = intersect(a.lengths, b.lengths);
  c.items = intersect(a.items, b.items);
  c.members = intersect(a.members, b.members);
  add_new(c.objects, b.objects);
  add_new(c.arrays, b.arrays);
  add_new(c.unsupported, b.unsupported);
  if (!is_possible(c)) return std::nullopt;
  return c;
}

bool Schemas::is_possible(Alternative& a) {
  if (a.values) {
    Types left;
    std::erase_if(*a.values, [&](const Json* value) {
      const bool allowed = a.types[type_of(*value)] && allows(a, *value);
      if (allowed) left.set(type_of(*value));
      return !allowed;
    });
    a.types &= ~(kNumbers | Types(1 << kString)) | left;
    a.excluded.clear();
    a.multiples.clear();
    a.strings.clear();
    a.min = a.max = nullptr;
    a.lengths = {};
  } else {
    if (a.min != nullptr && a.max != nullptr) {
      const auto order = *a.min <=> *a.max;
      if (order > 0 || (order == 0 && (a.min_exclusive || a.max_exclusive))) a.types &= ~kNumbers;
    }
    if (a.lengths.min > a.lengths.max || !is_possible(a.strings)) a.types.reset(kString);
  }
  for (const Type type : {kArray, kObject})
    if (a.types[type] && has_impossible_part(a, type)) a.types.reset(type);
  return a.types.any();
}

/// Whether a required member contradicts itself, or a required element. Such a contradiction tells
/// the branches of most oneOf apart. Only conditions from several schemas are looked into.
bool Schemas::has_impossible_part(const Alternative& a, Type type) {
  const Limits& limits = type == kObject ? a.members : a.items;
  if (limits.min > limits.max) return true;
  if (depth_ >= kMaxLookAhead) return false;
  ++depth_;
  const auto is_impossible = [&](const Terms& terms) {
    for (const Term& term : terms)
      if (term.kind == Term::Kind::kSchema && *term.json == kNoSchema) return true;
    if (terms.size() < 2) return false;
    const auto [it, is_new] = impossible_.try_emplace({depth_, terms}, false);
    if (is_new) it->second = expand(terms).empty();
    return it->second;
  };
  bool found = false;
  if (type == kObject) {
    for (const auto& rules : a.objects)
      for (const std::string_view name : rules->required)
        found = found || is_impossible(member(a, name));
  } else {
    size_t num = 0;
    for (const auto& rules : a.arrays) num = std::max(num, rules->prefix.size() + 1);
    for (size_t i = 0; i < std::min<size_t>(num, limits.min); ++i)
      found = found || is_impossible(element(a, i));
  }
  --depth_;
  return found;
}

Terms Schemas::member(const Alternative& object, std::string_view name) {
  count_work(1 + object.objects.size() / 8);
  Terms terms;
  for (const auto& rules : object.objects) {
    bool is_listed = false;
    if (const auto it = rules->by_name.find(name); it != rules->by_name.end()) {
      add_term(terms, it->second);
      is_listed = true;
    }
    for (const auto& [pattern, term] : rules->patterns)
      if (matches({pattern, term.json}, name)) {
        add_term(terms, term);
        is_listed = true;
      }
    if (!is_listed && rules->additional) add_term(terms, *rules->additional);
    if (!rules->names) continue;
    const Json value = name;
    const Alternatives names = expand({*rules->names});
    if (std::none_of(names.begin(), names.end(), [&](const Alternative& a) {
          return a.types[kString] &&
                 (a.values ? std::any_of(a.values->begin(), a.values->end(),
                                         [&](const Json* v) { return *v == value; })
                           : allows(a, value));
        }))
      add_term(terms, {&kNoSchema});
  }
  return terms;
}

Terms Schemas::element(const Alternative& array, size_t index) {
  Terms terms;
  for (const auto& rules : array.arrays) {
    if (index < rules->prefix.size()) add_term(terms, rules->prefix[index]);
    else if (rules->rest) add_term(terms, *rules->rest);
  }
  return terms;
}

bool Schemas::matches(const StringRule& rule, std::string_view text) {
  auto it = testers_.find({rule.is_format, rule.text});
  if (it == testers_.end()) {
    Tester tester{std::make_unique<Expressions>(), Expr::kNothing};
    Expressions& e = *tester.expressions;
    tester.expr = e.prepare(texts_of(e, rule, Coding::kUtf8, document_));
    it = testers_.emplace(std::pair(rule.is_format, rule.text), std::move(tester)).first;
  }
  Expr state = it->second.expr;
  for (const char c : text) state = it->second.expressions->derive(state, static_cast<uint8_t>(c));
  return it->second.expressions->is_nullable(state);
}

bool Schemas::is_possible(const std::vector<StringRule>& rules) {
  if (rules.size() < 2) return true;
  const auto [it, is_new] = possible_.try_emplace(rules, true);
  if (!is_new) return it->second;
  Expressions e;
  Expr all = Expr::kAny;
  for (const StringRule& rule : rules) {
    const Expr texts = texts_of(e, rule, Coding::kUtf8, document_);
    all = e.both(all, rule.negated ? e.complement(texts) : texts);
  }
  try {
    it->second = e.prepare(all) != Expr::kNothing;
  } catch (const UserError&) {  // it takes too long to know
  }
  return it->second;
}

bool Schemas::allows(const Alternative& a, const Json& value) {
  for (const Json* excluded : a.excluded)
    if (*excluded == value) return false;
  if (value.is_string()) {
    const std::string& text = value.string();
    const size_t len = num_code_points(text);
    if (len < a.lengths.min || len > a.lengths.max) return false;
    return std::all_of(a.strings.begin(), a.strings.end(),
                       [&](const StringRule& rule) { return matches(rule, text) != rule.negated; });
  }
  if (a.min != nullptr && (value < *a.min || (a.min_exclusive && value == *a.min))) return false;
  if (a.max != nullptr && (value > *a.max || (a.max_exclusive && value == *a.max))) return false;
  return std::all_of(a.multiples.begin(), a.multiples.end(), [&](const Json* divisor) {
    return document_.located(
        *divisor, [&](const std::string& where) { return is_multiple(value, *divisor, where); });
  });
}

}  // namespace nanovllm::grammar
