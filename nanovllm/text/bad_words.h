#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

/// The tokens of forbidden words as one list: for each word the number of its tokens, then the
/// tokens. A word is forbidden at the start of the answer and after a space, where its tokens
/// differ. As in vLLM, the tokens after a space are forbidden only if they are equally many and the
/// first differs.
std::vector<int32_t> encode_bad_words(std::span<const std::string> words,
                                      const Tokenizer& tokenizer);

}  // namespace nanovllm
