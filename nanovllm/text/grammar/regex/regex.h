#pragma once

#include <string>
#include <string_view>

#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

struct RegexOptions {
  Coding coding = Coding::kUtf8;
  /// Whether the pattern's match may stand anywhere in the text, as JSON Schema's `pattern` means
  /// it. Otherwise the pattern matches the whole text.
  bool anywhere = false;
};

/// The texts that a regular expression matches: ECMA 262's dialect with flag u, without
/// look-around, back-references and word borders, and what people use from others: (?i), (?s), (?m)
/// at the start or as (?i:...), (?P<name>...), (?<name>...), \A, \z, \p{...}, \x41, \u{1F600},
/// [[:alpha:]]. ^ and $ may stand wherever they can match. Throws UserError that begins with
/// `where` for a syntax error and, by name, for what is not supported.
Expr parse_regex(Expressions& e, std::string_view pattern, const RegexOptions& options,
                 const std::string& where);

}  // namespace nanovllm::grammar
