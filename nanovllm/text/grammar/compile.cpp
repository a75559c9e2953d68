#include "nanovllm/text/grammar/compile.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/base/error.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/grammar/regex/regex.h"
#include "nanovllm/text/grammar/schema/json_schema.h"
#include "nanovllm/text/grammar/syntax/grammar_text.h"
#include "nanovllm/text/grammar/syntax/structural_tag.h"

namespace nanovllm::grammar {

namespace {

constexpr size_t kMaxFormBytes = 512 << 10;

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

/// Parses and prepares a form.
Expr start_of(Expressions& e, const StructuredOutputs& form, const std::string& where) {
  Expr start = Expr::kNothing;
  try {
    start = e.prepare(parse(e, form, where));
    e.first_bytes(start);  // so that a form that is too large for its first byte is refused here
  } catch (const UserError& error) {
    const std::string what = error.what();
    if (what.starts_with(where)) throw;
    throw UserError(where + ": " + what);  // an error of Expressions
  }
  require(start != Expr::kNothing, "{}: no text has this form", where);
  return start;
}

}  // namespace

std::shared_ptr<Grammar> compile(const StructuredOutputs& form,
                                 std::shared_ptr<const TokenTrie> trie, const std::string& where,
                                 size_t max_steps) {
  auto e = std::make_unique<Expressions>();
  const Expr start = start_of(*e, form, where);
  return std::make_shared<Grammar>(std::move(e), start, std::move(trie), max_steps);
}

std::string show(const StructuredOutputs& form, const std::string& where) {
  Expressions e;
  const Expr start = start_of(e, form, where);
  return e.to_text(start);
}

std::shared_ptr<const TokenTrie> make_trie(const TokenTexts& texts,
                                           std::span<const int32_t> end_ids, int64_t vocab_size) {
  auto trie = std::make_shared<const TokenTrie>(texts, end_ids, vocab_size);
  // Nearly every schema has strings, free ones and names of members, and the trie keeps the walks
  // through their characters.
  const auto strings = compile({.json = R"({"properties": {"a": {"type": "string"}}})"}, trie, "");
  TokenBits bits((trie->num_tokens() + 31) / 32);
  for (const char* text : {R"({"a": ")", R"({"b)"}) {
    Matcher matcher(strings);
    matcher.accept_text(text);
    matcher.fill(bits);
  }
  return trie;
}

}  // namespace nanovllm::grammar
