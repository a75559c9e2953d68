#pragma once

#include <string>
#include <string_view>

#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

/// The language of a grammar: GBNF as llama.cpp and EBNF as xgrammar write it where the text has
/// "::=" (start rule `root`), else Lark as llguidance and vLLM write it (start rule `start`). A
/// text is in the language if any way of splitting it into terminals fits. Throws UserError with
/// `where` and the line for a syntax error, for a rule that is not defined, and for what is not
/// supported.
Expr parse_grammar(Expressions& e, std::string_view text, const std::string& where);
Expr parse_gbnf(Expressions& e, std::string_view text, const std::string& where);
Expr parse_lark(Expressions& e, std::string_view text, const std::string& where);

}  // namespace nanovllm::grammar
