#include "nanovllm/text/grammar/schema/json_schema.h"

#include "nanovllm/base/check.h"
#include "nanovllm/text/grammar/schema/schema_document.h"
#include "nanovllm/text/grammar/schema/schema_values.h"

namespace nanovllm::grammar {

Expr parse_json_schema(Expressions& e, const Json& schema, const JsonSchemaOptions& options,
                       const std::string& where) {
  const SchemaDocument document(schema, where);
  Terms terms;
  add_term(terms, {&schema});
  const Expr start = SchemaValues(e, document, options, where).build(terms);
  require(start != Expr::kNothing, "{}: the schema allows nothing", where);
  return start;
}

Expr any_json_object(Expressions& e, const JsonSchemaOptions& options) {
  return parse_json_schema(e, {{"type", "object"}}, options, "json_object");
}

}  // namespace nanovllm::grammar
