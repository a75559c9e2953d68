#pragma once

#include <string>
#include <string_view>

#include "nanovllm/text/grammar/expressions.h"
#include "nanovllm/text/grammar/json_schema.h"

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

/// Whether a number has no fraction, and how it is written then: 1.0 as 1.
bool is_integer(const Json& number);
std::string decimal(const Json& number);
size_t num_code_points(std::string_view text);

}  // namespace nanovllm::grammar
