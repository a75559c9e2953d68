#pragma once

#include <spdlog/spdlog.h>

namespace nanovllm {

/// The engine's log. Each message is one line on stderr, "LEVEL: text". spdlog's set_level() sets
/// which levels are written. Thread-safe.
spdlog::logger& log();

}  // namespace nanovllm
