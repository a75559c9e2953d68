#pragma once

#include <cstdint>
#include <vector>

#include "nanovllm/model/model_spec.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

/// The tokens that end an answer: those of generation_config.json and config.json, and the
/// tokenizer's eos_token. Fine-tuned checkpoints often keep the files of the base model, whose end
/// token is not the one that ends a turn in their chat template. `tokenizer` may be null.
std::vector<int32_t> end_tokens(const ModelSpec& model, const Tokenizer* tokenizer);

}  // namespace nanovllm
