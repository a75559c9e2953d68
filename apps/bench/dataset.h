#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/bench/bench.h"
#include "nanovllm/base/config.h"

namespace nanovllm {

/// The options that all commands of bench that run a set of requests share.
struct DatasetOptions {
  std::string model;
  EngineConfig config;
  std::string dataset;      ///< a prompts file; empty: nano-vLLM's 256 sequences
  int64_t num_prompts = 0;  ///< only the first ones; 0: all
};

void add_dataset_options(Command command, DatasetOptions& options);

/// Reads the requests. Throws UserError if the file has no prompts, or a prompt that is refused.
std::vector<Prompt> read_dataset(const DatasetOptions& options, const LLMEngine& engine);

}  // namespace nanovllm
