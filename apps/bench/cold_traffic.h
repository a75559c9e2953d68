#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

/// The requests that `bench cold` repeats. Their prompts are random tokens, and they are the same
/// in every round and every process.
struct ColdTraffic {
  std::string name;  ///< "at-once" or "arriving"
  int64_t num_prompts = 256;
  int64_t max_len = 1024;    ///< the longest prompt, and the longest answer, in tokens
  double request_rate = 40;  ///< arriving requests a second
  int64_t num_rounds = 3;
};

/// Loads the model, and measures the first token and then the rounds. The process must not have
/// done anything else before. The result is the JSON object that `bench cold --json` prints;
/// nothing after Ctrl-C. Throws UserError.
std::optional<Json> measure_cold(const std::string& model, const EngineConfig& config,
                                 const ColdTraffic& traffic);

/// The result of measure_cold() as a table in 80 columns.
std::string cold_table(const Json& result);

}  // namespace nanovllm
