#pragma once

#include <deque>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/text/grammar/schema/json_schema.h"
#include "nanovllm/text/grammar/schema/json_text.h"
#include "nanovllm/text/grammar/schema/schema.h"

namespace nanovllm::grammar {

/// Makes expressions of schemas. Each object and array becomes a rule, so that schemas which
/// contain themselves have an end, and equal ones are built once.
class SchemaValues {
 public:
  SchemaValues(Expressions& e, const SchemaDocument& document, const JsonSchemaOptions& options,
               const std::string& where);

  /// The values for which all terms hold, and everything inside of them.
  Expr build(const Terms& terms);

 private:
  struct Member {
    Expr text;
    bool required;
  };

  /// Does what build() does, but what is inside of objects and arrays is left for later.
  Expr value(const Terms& terms);
  Expr value(const Alternative& a);
  Expr number(const Alternative& a);
  Expr string(const Alternative& a);
  /// What stands between the quotes, in the coding of written().
  Expr string_body(const Alternative& a);
  Expr array(const Alternative& a);
  Expr object(const Alternative& a);
  Expr members(const std::vector<Member>& named, Expr other, const Limits& limits);
  /// A member that is not named.
  Expr other_member(const Alternative& a, const std::vector<std::string_view>& named);
  Expr other_key(const Alternative& a, const std::vector<std::string_view>& named);
  /// The end of a list after `num` of its elements, beginning with the comma.
  Expr list_end(Expr element, uint32_t num, const Limits& limits, Expr close);
  Expr written_value(const Json& value);

  Expressions& e_;
  const JsonSchemaOptions& options_;
  Schemas schemas_;
  JsonText json_;
  std::map<Terms, Expr> built_;
  std::deque<std::pair<Expr, Alternatives>> waiting_;  ///< rules to be defined
};

}  // namespace nanovllm::grammar
