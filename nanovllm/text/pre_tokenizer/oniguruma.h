#pragma once

#include <string>
#include <string_view>

namespace nanovllm {

/// Translates a regular expression of Oniguruma (its own syntax, doc/RE of version 6.9) to PCRE2.
/// The two differ in what \s \w \b \h and \p{Script} match, in sets inside of sets and their
/// intersections, in the options (?m) and (?i), and in quantifiers. Throws UserError, which begins
/// with `where`, for what PCRE2 cannot express or no tokenizer needs: \G \K \X \y, calls of groups,
/// conditions, absent operators, callouts, and repetitions of more than 999, which would count as
/// only one move (regex.h).
std::string to_pcre(std::string_view pattern, const std::string& where);

}  // namespace nanovllm
