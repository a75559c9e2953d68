#pragma once

#include <optional>
#include <string_view>

#include "nanovllm/text/grammar/language/code_points.h"

namespace nanovllm::grammar {

/// \d, \w and \s as ECMA 262 defines them: ASCII's digits and word characters, and Unicode's white
/// space.
CodePoints shorthand_class(char letter);

/// [:name:], which is ASCII only. Nothing for a name that is not known.
std::optional<CodePoints> posix_class(std::string_view name);

/// \p{name}: a general category, a script, or another property that PCRE2 knows; also name=value.
/// Nothing for a name that is not known. Thread-safe.
std::optional<CodePoints> property_class(std::string_view name);

/// The set with all characters that differ from its members only by case (simple case folding).
CodePoints with_case_variants(const CodePoints& set);

}  // namespace nanovllm::grammar
