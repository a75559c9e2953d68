#pragma once

#include <string>
#include <vector>

namespace nanovllm {

/// The 256 requests of nano-vLLM's bench.py as lines of a prompts file: 100 to 1,024 random token
/// ids below 10,001 each, and answers of 100 to 1,024 tokens. bench/nanovllm_256.jsonl has the same
/// lines.
std::vector<std::string> nano_vllm_requests();

}  // namespace nanovllm
