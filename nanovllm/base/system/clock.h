#pragma once

#include <algorithm>
#include <chrono>

namespace nanovllm {

/// Seconds on the steady clock, which never jumps.
inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The time that is this many seconds from now; `seconds` may be infinite.
inline std::chrono::steady_clock::time_point steady_time_in(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLongest = 1e9;  // thirty years; no clock overflows
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(std::min(seconds, kLongest)));
}

/// Seconds since the kernel started this process, which is before main() and before the dynamic
/// linker. The kernel rounds the start down to its clock tick, mostly 10 ms.
double seconds_since_process_start();

}  // namespace nanovllm
