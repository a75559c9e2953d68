#pragma once

#include <string>

#include "nanovllm/base/json.h"
#include "nanovllm/text/grammar/expressions.h"
#include "nanovllm/text/grammar/json_schema.h"

namespace nanovllm::grammar {

/// Free text with parts that have a form: {"type": "structural_tag", "format": ...} as xgrammar 0.2
/// describes it, or the older {"type", "structures", "triggers"}. Throws UserError with `where` and
/// a JSON pointer for what is wrong or not supported.
Expr parse_structural_tag(Expressions& e, const Json& spec, const JsonSchemaOptions& options,
                          const std::string& where);

}  // namespace nanovllm::grammar
