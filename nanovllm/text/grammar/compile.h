#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "nanovllm/base/structured_outputs.h"
#include "nanovllm/text/grammar/token_masks.h"

namespace nanovllm::grammar {

/// The tokens of a tokenizer, and what they can be within JSON strings, for any number of grammars.
std::shared_ptr<const TokenTrie> make_trie(const TokenTexts& texts,
                                           std::span<const int32_t> end_ids, int64_t vocab_size);

/// The grammar of a form. Throws UserError that begins with `where` for a form that is wrong, not
/// supported, too large (512 KiB), or allows no text.
std::shared_ptr<Grammar> compile(const StructuredOutputs& form,
                                 std::shared_ptr<const TokenTrie> trie, const std::string& where,
                                 size_t max_steps = Grammar::kMaxSteps);

/// What a form is compiled to, for a reader. Throws as compile() does.
std::string show(const StructuredOutputs& form, const std::string& where);

}  // namespace nanovllm::grammar
