#include "nanovllm/families/family.h"

namespace nanovllm {

/// Source: Jiang et al., "Mistral 7B", 2023. The window of its first version is refused.
ModelSpec read_mistral(const ModelFiles& files) {
  return read_decoder(
      files, {.num_kv_heads = 8, .max_position_embeddings = 131072, .sliding_window = 4096});
}

}  // namespace nanovllm
