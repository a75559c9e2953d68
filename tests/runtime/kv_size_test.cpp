#include "nanovllm/runtime/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <thread>

#include "nanovllm/base/error.h"
#include "nanovllm/ops/cpu/machine/memory.h"

namespace nanovllm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr size_t kGiB = size_t{1} << 30;

ModelSpec model() {
  ModelSpec m;
  m.layers.resize(4);
  for (LayerSpec& layer : m.layers) layer.attention = {.num_kv_heads = 2, .head_dim = 64};
  m.ropes.resize(1);
  m.max_position_embeddings = 4096;
  return m;
}
// 2 (K and V) x 4 layers x 2 heads x 64 x 2 bytes
constexpr size_t kTokenBytes = 2048;
constexpr size_t kBlockBytes = 64 * kTokenBytes;
// The bytes that 64 positions of the longest sequence take besides the cache: cosines and sines,
// and an entry of a block table for each of 512 sequences.
constexpr size_t kLengthBytes = 64 * 64 * 4 + 4 * 512;

TEST(KvSize, OnTheCpuItIsAtMost4GibHalfTheFreeMemoryAndTheNeed) {
  EngineConfig config;
  const auto size = [&](size_t left) {
    return size_kv_cache(config, model(), DType::kBF16, cpu_kv_bytes(left));
  };
  const size_t tables = 4096 / 64 * kLengthBytes;
  EXPECT_EQ(size(100 * kGiB).num_blocks, static_cast<int64_t>((4 * kGiB - tables) / kBlockBytes));
  EXPECT_EQ(size(2 * kGiB).num_blocks, static_cast<int64_t>((kGiB - tables) / kBlockBytes));
  config.max_num_seqs = 3;
  EXPECT_EQ(size(100 * kGiB).num_blocks, 3 * 4096 / 64);
  EXPECT_EQ(size(100 * kGiB).max_model_len, 4096);
}

TEST(KvSize, ContextIsTheLargestThatFits) {
  EngineConfig config;
  const size_t bytes = 16 * (kBlockBytes + kLengthBytes) - 1;
  const KvSize size = size_kv_cache(config, model(), DType::kBF16, bytes);
  EXPECT_EQ(size.num_blocks, 15);
  EXPECT_EQ(size.max_model_len, 15 * 64);
}

// The rotary tables of ten million positions take as much as a small model's cache.
TEST(KvSize, TablesThatGrowWithTheContextAreCounted) {
  ModelSpec m = model();
  m.max_position_embeddings = 2147483647;
  for (const char* device : {"cpu", "cuda"}) {
    EngineConfig config;
    config.device = device;
    const auto seqs = static_cast<size_t>(config.max_num_seqs);
    const auto taken = [&](const KvSize& size) {
      const auto positions = static_cast<size_t>(size.max_model_len);
      return static_cast<size_t>(size.num_blocks) * kBlockBytes +
             positions * m.rope_bytes_per_position() + seqs * positions / 64 * 4;
    };
    for (const int64_t context : {0, 64 * 1000, 64 * 100'000}) {
      if (context > 0) m.max_position_embeddings = context;
      const KvSize size = size_kv_cache(config, m, DType::kBF16, 2 * kGiB);
      EXPECT_LE(taken(size), 2 * kGiB) << device << context;
      EXPECT_GT(taken(size), 2 * kGiB - 2 * kBlockBytes) << device << context;
      EXPECT_EQ(size.max_model_len, std::min(m.max_position_embeddings, size.num_blocks * 64));
    }
    m.max_position_embeddings = 2147483647;
  }
}

TEST(KvSize, OptionsHavePrecedence) {
  EngineConfig config;
  config.kv_cache_memory_bytes = static_cast<int64_t>(100 * 64 * kTokenBytes);
  EXPECT_EQ(size_kv_cache(config, model(), DType::kBF16, kGiB).num_blocks, 100);
  EXPECT_EQ(size_kv_cache(config, model(), DType::kF32, kGiB).num_blocks, 50);
  config.num_gpu_blocks_override = 7;
  EXPECT_EQ(size_kv_cache(config, model(), DType::kBF16, kGiB).num_blocks, 7);
}

TEST(KvSize, OnAGpuItIsTheUtilizationLessUsedAndReservedMemory) {
  const auto left = [](size_t free) {
    return Memory{.total = 100 * kGiB, .free = free}.left(0.9, 20 * kGiB);
  };
  EXPECT_EQ(left(100 * kGiB), 70 * kGiB);
  EXPECT_EQ(left(60 * kGiB), 30 * kGiB);
  EXPECT_EQ(left(20 * kGiB), 0u);
}

// Ranks have unequal memory and unequal numbers of heads. All use the smallest number of blocks.
TEST(KvSize, AllRanksUseTheSmallestSize) {
  const Buffer memory = cpu::allocate(Communicator::bytes());
  std::array<KvSize, 3> sizes;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < 3; ++r)
      threads.emplace_back([&, r] {
        Communicator ranks(memory.get(), {r, 3});
        ModelSpec part = model();
        for (LayerSpec& layer : part.layers) layer.attention.num_kv_heads = r == 1 ? 4 : 2;
        const size_t blocks = r == 2 ? 30 : 40;
        sizes[static_cast<size_t>(r)] =
            size_kv_cache({}, part, DType::kBF16, blocks * kBlockBytes + 20 * kLengthBytes, &ranks);
      });
  }
  for (const KvSize& size : sizes) {
    EXPECT_EQ(size.num_blocks, 20);
    EXPECT_EQ(size.max_model_len, 20 * 64);
  }
}

TEST(KvSize, SizeIsNotNegativeIfMemoryIsUsedUp) {
  const EngineConfig config;
  EXPECT_THAT(
      [&] { size_kv_cache(config, model(), DType::kBF16, 0); },
      ThrowsMessage<UserError>(AllOf(HasSubstr("may take 0 bytes"), HasSubstr("--block-size"))));
}

TEST(KvSize, TheErrorNamesTheSizeThatIsEnough) {
  EngineConfig config;
  config.kv_cache_memory_bytes = static_cast<int64_t>(64 * kTokenBytes);
  EXPECT_EQ(size_kv_cache(config, model(), DType::kBF16, kGiB).num_blocks, 1);
  const std::string enough = fmt::format("takes {} bytes", config.kv_cache_memory_bytes);
  --config.kv_cache_memory_bytes;
  EXPECT_THAT([&] { size_kv_cache(config, model(), DType::kBF16, kGiB); },
              ThrowsMessage<UserError>(HasSubstr(enough)));
}

// The index of a token's slot in the cache is an int32, and sizes are products of option values.
TEST(KvSize, LargestOptionsDoNotOverflow) {
  EngineConfig config;
  config.kv_cache_memory_bytes = std::numeric_limits<int64_t>::max();
  for (const int64_t block_size : {16, 64, 65536}) {
    config.block_size = block_size;
    const KvSize size = size_kv_cache(config, model(), DType::kBF16, kGiB);
    EXPECT_EQ(size.num_blocks, std::numeric_limits<int32_t>::max() / block_size);
    EXPECT_EQ(size.max_model_len, 4096);
  }
  config.num_gpu_blocks_override = std::numeric_limits<int32_t>::max();
  EXPECT_THAT([&] { size_kv_cache(config, model(), DType::kBF16, kGiB); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("--num-gpu-blocks-override is 2147483647"),
                                             HasSubstr("at most 32767 with --block-size 65536"))));
}

TEST(KvSize, LengthThatDoesNotFitIsRefusedWithTheOneThatDoes) {
  EngineConfig config;
  config.max_model_len = 5000;
  EXPECT_THAT([&] { size_kv_cache(config, model(), DType::kBF16, kGiB); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("5000"), HasSubstr("4096"))));
  config.max_model_len = 2000;
  config.num_gpu_blocks_override = 10;
  EXPECT_THAT([&] { size_kv_cache(config, model(), DType::kBF16, kGiB); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("(10 blocks of 64): lower it to 640"),
                                             HasSubstr("--num-gpu-blocks-override 32"))));
  config.num_gpu_blocks_override = 1;
  EXPECT_THAT([&] { size_kv_cache(config, model(), DType::kBF16, kGiB); },
              ThrowsMessage<UserError>(HasSubstr("holds 64 tokens (1 block of 64)")));
}

}  // namespace
}  // namespace nanovllm
