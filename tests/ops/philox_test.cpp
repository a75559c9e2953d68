#include "nanovllm/ops/cpu/kernels/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace nanovllm::cpu {
namespace {

using testing::ElementsAre;

std::vector<uint32_t> philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  uint64_t words[4] = {counter[0], counter[1], counter[2], counter[3]};
  philox4x32_10(words, key[0], key[1], [](uint64_t a, uint32_t b) { return (a & 0xffffffff) * b; });
  return {words, words + 4};
}

// The known answers that the authors publish with their library (Random123, tests/kat_vectors).
TEST(Philox, KnownAnswers) {
  EXPECT_THAT(philox({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

}  // namespace
}  // namespace nanovllm::cpu
