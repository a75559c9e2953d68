#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

/// The tokens of forbidden words as one list: for each word the number of its tokens, then the
/// tokens. A word may have other tokens at the start of a text than after a space; then both are
/// forbidden. As in vLLM, those after a space are forbidden only if there are as many of them and
/// the first one differs.
std::vector<int32_t> encode_bad_words(std::span<const std::string> words,
                                      const Tokenizer& tokenizer);

}  // namespace nanovllm
