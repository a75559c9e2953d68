#include "nanovllm/text/grammar/compile.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/error.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/grammar/grammar_text.h"
#include "nanovllm/text/grammar/json_schema.h"
#include "nanovllm/text/grammar/regex.h"
#include "nanovllm/text/grammar/structural_tag.h"

namespace nanovllm::grammar {

namespace {

constexpr size_t kMaxFormBytes = 1 << 20;

void check_size(size_t num_bytes, const std::string& where) {
  require(num_bytes <= kMaxFormBytes, "{} has {} bytes, more than {}", where, num_bytes,
          kMaxFormBytes);
}

Expr parse(Expressions& e, const StructuredOutputs& form, const std::string& where) {
  const JsonSchemaOptions options{
      .whitespace_pattern = form.whitespace_pattern,
      .disable_any_whitespace = form.disable_any_whitespace,
      .disable_additional_properties = form.disable_additional_properties};
  for (const auto* text : {&form.json, &form.regex, &form.grammar, &form.structural_tag}) {
    if (!*text) continue;
    check_size((*text)->size(), where);
    require_utf8(**text, where);
  }
  if (form.json) return parse_json_schema(e, parse_json(*form.json, where), options, where);
  if (form.regex) return parse_regex(e, *form.regex, {}, where);
  if (form.grammar) return parse_grammar(e, *form.grammar, where);
  if (form.json_object) return any_json_object(e, options);
  if (form.structural_tag)
    return parse_structural_tag(e, parse_json(*form.structural_tag, where), options, where);
  require(!form.choice.empty(), "{} says nothing about the answer", where);
  size_t num_bytes = 0;
  for (const std::string& choice : form.choice) {
    require_utf8(choice, where);
    num_bytes += choice.size();
  }
  check_size(num_bytes, where);
  return e.texts(form.choice);
}

}  // namespace

std::shared_ptr<Grammar> compile(const StructuredOutputs& form,
                                 std::shared_ptr<const TokenTrie> trie, const std::string& where) {
  auto e = std::make_unique<Expressions>();
  const Expr parsed = parse(*e, form, where);
  Expr start = Expr::kNothing;
  try {
    start = e->prepare(parsed);
  } catch (const UserError& error) {
    throw UserError(where + ": " + error.what());
  }
  require(start != Expr::kNothing, "{}: no text has this form", where);
  return std::make_shared<Grammar>(std::move(e), start, std::move(trie));
}

std::shared_ptr<Grammar> Cache::get(const StructuredOutputs& form, const std::string& where) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = std::ranges::find(entries_, form, &Entry::form);
        known != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, known);
      return known->grammar;
    }
  }
  auto grammar = compile(form, trie_, where);
  const std::lock_guard lock(mutex_);
  entries_.push_front({form, grammar});
  if (entries_.size() > kMaxGrammars) entries_.pop_back();
  return grammar;
}

}  // namespace nanovllm::grammar
