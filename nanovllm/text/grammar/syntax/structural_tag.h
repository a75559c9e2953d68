#pragma once

#include <string>

#include "nanovllm/base/json.h"
#include "nanovllm/text/grammar/language/expressions.h"
#include "nanovllm/text/grammar/schema/json_schema.h"

namespace nanovllm::grammar {

/// Free text with parts that have a form: {"type": "structural_tag", "format": ...} as xgrammar 0.2
/// describes it, or the older {"type", "structures", "triggers"}. Throws UserError with `where` and
/// a JSON pointer for what is wrong or not supported.
Expr parse_structural_tag(Expressions& e, const Json& spec, const JsonSchemaOptions& options,
                          const std::string& where);

/// The members of an object as parameters of a function call: <parameter=name>value</parameter> in
/// the style "qwen_xml". Strings are plain text, and other values are JSON. Like
/// parse_structural_tag() it throws UserError.
Expr parse_xml_parameters(Expressions& e, const Json& schema, const std::string& style,
                          const JsonSchemaOptions& options, const std::string& where);

}  // namespace nanovllm::grammar
