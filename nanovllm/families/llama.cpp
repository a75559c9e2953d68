#include "nanovllm/families/family.h"

namespace nanovllm {

/// Source: Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023.
ModelSpec read_llama(const ModelFiles& files) {
  return read_decoder(files, {.max_position_embeddings = 2048});
}

}  // namespace nanovllm
