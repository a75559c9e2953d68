#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nanovllm/base/json.h"

namespace nanovllm {

/// The times of the requests of a run, in milliseconds and as vLLM counts them.
struct ServeResult {
  std::vector<double> ttft, tpot, itl, e2el;
  int64_t completed = 0, failed = 0, input_tokens = 0, output_tokens = 0, num_events = 0;
  size_t num_running = 0, most_running = 0;
  double duration = 0;
  std::string first_error;
};

/// The figures under the keys of `vllm bench serve`, after the run's settings.
Json serve_report(ServeResult result, const Json& settings);

/// A report of serve_report() as the table that `vllm bench serve` prints.
std::string serve_table(const Json& report);

}  // namespace nanovllm
