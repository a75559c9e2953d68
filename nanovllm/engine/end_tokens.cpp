#include "nanovllm/engine/end_tokens.h"

#include <algorithm>

namespace nanovllm {

std::vector<int32_t> end_tokens(const ModelSpec& model, const Tokenizer* tokenizer) {
  std::vector<int32_t> ids = model.eos_token_ids;
  if (tokenizer == nullptr) return ids;
  if (const auto eos = tokenizer->eos_token_id(); eos && std::ranges::find(ids, *eos) == ids.end())
    ids.push_back(*eos);
  return ids;
}

}  // namespace nanovllm
