#include "nanovllm/base/logging.h"

#include <spdlog/sinks/stdout_sinks.h>

namespace nanovllm {

spdlog::logger& log() {
  static spdlog::logger logger = [] {
    spdlog::logger made("nanovllm", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made.set_pattern("%l: %v");
    return made;
  }();
  return logger;
}

}  // namespace nanovllm
