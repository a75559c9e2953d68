#pragma once

#include <spdlog/spdlog.h>

namespace nanovllm {

/// The engine's log: one line a message on stderr, "LEVEL text". Levels by spdlog's set_level().
spdlog::logger& log();

}  // namespace nanovllm
