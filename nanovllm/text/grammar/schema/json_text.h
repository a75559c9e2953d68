#pragma once

#include <string>
#include <string_view>

#include "nanovllm/text/grammar/language/expressions.h"
#include "nanovllm/text/grammar/schema/json_schema.h"

namespace nanovllm::grammar {

/// The parts of JSON texts that do not depend on a schema.
struct JsonText {
  JsonText(Expressions& e, const JsonSchemaOptions& options, const std::string& where);

  /// White space inside of brackets; commas and colons with the white space around them.
  Expr gap, comma, colon;
  /// A character of a string, in any coding; and in the one that written() has.
  Expr free_character, character;

  Expr quoted(Expressions& e, Expr body) const;
  /// A string with exactly this text.
  Expr quoted(Expressions& e, std::string_view text) const;
};

/// written(), which looks at each character, in the coding of strings.
Expr string_text(Expressions& e, std::string_view text);
/// Whether a number has no fraction, and how it is written then: 1.0 as 1.
bool is_integer(const Json& number);
std::string number_text(const Json& number);
size_t num_code_points(std::string_view text);

}  // namespace nanovllm::grammar
