#pragma once

#include <cstdint>

namespace nanovllm {

/// a / b, rounded up; `a` is at least 0 and `b` at least 1.
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace nanovllm
