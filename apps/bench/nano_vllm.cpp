#include "apps/bench/nano_vllm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <random>

namespace nanovllm {

namespace {

constexpr size_t kNumRequests = 256;
constexpr uint32_t kLeastLen = 100, kMostLen = 1024, kMostId = 10000;

/// The seed sequence that gives the generator the state of Python's random.seed(0).
/// Source: M. Matsumoto and T. Nishimura, mt19937ar.c, init_by_array() with the key {0}.
struct SeedOfPython {
  using result_type = uint32_t;

  static void generate(auto begin, auto end) {
    const auto n = static_cast<uint32_t>(end - begin);
    const auto mixed = [&](uint32_t i) {
      return begin[i - 1] ^ static_cast<uint32_t>(begin[i - 1] >> 30);
    };
    uint32_t i = 1;
    const auto step = [&] {
      if (++i < n) return;
      begin[0] = begin[n - 1];
      i = 1;
    };
    begin[0] = 19650218;
    for (uint32_t k = 1; k < n; ++k) begin[k] = static_cast<uint32_t>(1812433253U * mixed(k) + k);
    for (uint32_t k = 0; k < n; ++k, step())
      begin[i] = static_cast<uint32_t>(begin[i] ^ static_cast<uint32_t>(mixed(i) * 1664525U));
    for (uint32_t k = 1; k < n; ++k, step())
      begin[i] =
          static_cast<uint32_t>((begin[i] ^ static_cast<uint32_t>(mixed(i) * 1566083941U)) - i);
    begin[0] = 0x80000000U;
  }
};

/// Python's random.randint().
class Random {
 public:
  uint32_t between(uint32_t least, uint32_t most) {
    const uint32_t count = most - least + 1;
    uint32_t drawn = 0;
    do drawn = engine_() >> (32 - std::bit_width(count));
    while (drawn >= count);
    return least + drawn;
  }

 private:
  static std::mt19937 seeded() {
    SeedOfPython seed;
    return std::mt19937(seed);
  }
  std::mt19937 engine_ = seeded();
};

}  // namespace

// bench.py draws all prompts before the lengths of the answers.
std::vector<std::string> nano_vllm_requests() {
  Random random;
  std::vector<std::vector<uint32_t>> prompts(kNumRequests);
  for (std::vector<uint32_t>& prompt : prompts) {
    prompt.resize(random.between(kLeastLen, kMostLen));
    std::ranges::generate(prompt, [&] { return random.between(0, kMostId); });
  }
  std::vector<std::string> lines;
  for (const std::vector<uint32_t>& prompt : prompts)
    lines.push_back(fmt::format(
        R"({{"prompt_token_ids":[{}],"sampling_params":{{"temperature":0.6,"ignore_eos":true,"max_tokens":{}}}}})",
        fmt::join(prompt, ","), random.between(kLeastLen, kMostLen)));
  return lines;
}

}  // namespace nanovllm
