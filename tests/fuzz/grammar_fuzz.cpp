// A form of answers and, after a line of dashes, a text that is matched with it. The form's first
// letter says what it is: s (JSON Schema), r (regular expression), g (grammar), t (structural tag).
//
// A form may take a sixteenth of the memory of a real one, so that what it bounds ends soon.

#include <span>
#include <string>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/grammar/regex/regex.h"
#include "nanovllm/text/grammar/schema/json_schema.h"
#include "nanovllm/text/grammar/syntax/grammar_text.h"
#include "nanovllm/text/grammar/syntax/structural_tag.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace nanovllm;
using namespace nanovllm::grammar;

Expr parse_form(Expressions& e, char kind, const std::string& form) {
  require_utf8(form, "form");
  if (kind == 's') return parse_json_schema(e, parse_json(form, "form"), {}, "form");
  if (kind == 'r') return parse_regex(e, form, {}, "form");
  if (kind == 'g') return parse_grammar(e, form, "form");
  return parse_structural_tag(e, parse_json(form, "form"), {}, "form");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input = text_of(data, size);
  const std::string form(take_part(input));
  if (form.empty()) return 0;
  expect_user_errors_only([&] {
    Expressions e(4 << 20);
    const Expr start = e.prepare(parse_form(e, form[0], form.substr(1)));
    e.to_text(start);
    Expr state = start;
    for (const char byte : input) state = e.derive(state, static_cast<uint8_t>(byte));
    // What is left has a text, so a byte goes on or the text may end here.
    check(state == Expr::kNothing || e.is_nullable(state) || e.first_bytes(state).any(),
          "a state without a text");
    e.forget_all_but(std::span(&state, 1));
    e.first_bytes(state);
  });
  return 0;
}
