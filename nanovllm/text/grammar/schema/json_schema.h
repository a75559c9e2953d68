#pragma once

#include <optional>
#include <string>

#include "nanovllm/base/json.h"
#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

struct JsonSchemaOptions {
  /// A regular expression for the white space between tokens; by default some of JSON's.
  std::optional<std::string> whitespace_pattern;
  bool disable_any_whitespace = false;  ///< ", " and ": " and nothing else, as json.dumps() writes
  /// Members that a schema neither names nor mentions are not allowed.
  bool disable_additional_properties = false;
};

/// The JSON texts that a schema (draft 7 or 2020-12) allows, with the members of objects in the
/// order in which the schema names them. Throws UserError with `where` and a JSON pointer for what
/// is not supported, and for a schema that allows nothing.
Expr parse_json_schema(Expressions& e, const Json& schema, const JsonSchemaOptions& options,
                       const std::string& where);

/// Any JSON object, as response_format json_object asks for.
Expr any_json_object(Expressions& e, const JsonSchemaOptions& options);

}  // namespace nanovllm::grammar
