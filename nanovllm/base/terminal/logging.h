#pragma once

#include <spdlog/spdlog.h>

namespace nanovllm {

/// The engine's log. Each message is one line on stderr, "LEVEL: text". spdlog's set_level() sets
/// which levels are written. Thread-safe. Writing never waits: lines that stderr does not take at
/// once are lost.
spdlog::logger& log();

}  // namespace nanovllm
