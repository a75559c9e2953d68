#pragma once

#include <optional>
#include <string>

#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

/// A bound of a number, as a schema writes it in decimal digits: "-12", "0.5", "1e3".
struct Bound {
  std::string value;
  bool exclusive = false;
};

struct NumberForm {
  bool integer = false;
  std::optional<Bound> min = {}, max = {};
  std::optional<std::string> multiple_of = {};
};

/// JSON numbers in their usual form (no leading zeros). Integers have neither a fraction nor an
/// exponent; numbers with bounds or a divisor have no exponent. kNothing if there is none. Throws
/// UserError for a divisor or a bound with too many digits.
Expr number(Expressions& e, const NumberForm& form, const std::string& where);

}  // namespace nanovllm::grammar
