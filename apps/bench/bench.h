#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "apps/commands.h"
#include "apps/prompts.h"
#include "nanovllm/base/terminal/progress.h"
#include "nanovllm/engine/llm_engine.h"

namespace nanovllm {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Runs all prompts to their end. Returns the number of generated tokens, or -1 after Ctrl-C. The
/// bar counts finished prompts. Throws UserError if one of the prompts ends with an error.
int64_t run_all(LLMEngine& engine, const std::vector<Prompt>& prompts, ProgressBar* bar = nullptr);

/// Throws UserError if the update is the end of a request that failed. The tokens of a failed
/// request are missing, so the figures would describe less work. The message counts requests from
/// number `first`.
void require_success(const RequestUpdate& update, uint64_t first);

// Each of these functions adds a subcommand of bench.
void add_throughput(Command bench);
void add_latency(Command bench);
void add_sampling(Command bench);
void add_cold(Command bench);
void add_serve_bench(Command bench);

}  // namespace nanovllm
