#include "nanovllm/ops/cpu/machine/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace nanovllm::cpu {
namespace {

// Small ones share a mapping, where they follow each other; large ones have their own.
TEST(Memory, WeightsAreZeroAlignedAndTheirOwn) {
  const std::vector<size_t> sizes = {1,        100,      3 << 20,  16 << 20, (16 << 20) + 1,
                                     15 << 20, 15 << 20, 15 << 20, 15 << 20};
  std::vector<Buffer> buffers;
  for (const size_t size : sizes) {
    buffers.push_back(allocate_weight(size));
    auto* const bytes = static_cast<char*>(buffers.back().get());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(bytes) % 64, 0u);
    EXPECT_TRUE(std::all_of(bytes, bytes + size, [](char x) { return x == 0; })) << size;
    std::memset(bytes, static_cast<int>(buffers.size()), size);
  }
  EXPECT_EQ(static_cast<char*>(buffers[1].get()) - static_cast<char*>(buffers[0].get()), 64);
  buffers[1].reset();  // the others stay
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (i == 1) continue;
    const auto* const bytes = static_cast<const char*>(buffers[i].get());
    const auto value = static_cast<char>(i + 1);
    EXPECT_TRUE(std::all_of(bytes, bytes + sizes[i], [&](char x) { return x == value; })) << i;
  }
}

}  // namespace
}  // namespace nanovllm::cpu
