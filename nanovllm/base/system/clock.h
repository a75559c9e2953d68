#pragma once

#include <chrono>

namespace nanovllm {

/// Seconds on the steady clock, which never jumps.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace nanovllm
