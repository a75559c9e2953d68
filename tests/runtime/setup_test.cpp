#include "nanovllm/runtime/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "nanovllm/base/error.h"
#include "nanovllm/base/json.h"
#include "nanovllm/ops/cpu/cpu_backend.h"
#include "nanovllm/ops/cuda_library.h"
#include "nanovllm/runtime/model_runner.h"
#include "tests/json_file.h"

namespace nanovllm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

constexpr size_t kGiBytes = size_t{1} << 30;
const std::string kShape = std::string(NANOVLLM_SOURCE_DIR) + "/bench/shapes/Qwen3-0.6B";

/// A device with a given amount of memory, on which nothing is computed.
class Device : public cpu::CpuBackend {
 public:
  Device(size_t total, size_t free, size_t own = 0) : CpuBackend(1), memory_{total, free, own} {}
  Memory memory() const override { return memory_; }

 private:
  Memory memory_;
};

EngineSetup setup_on(const EngineConfig& config, size_t total, size_t free) {
  Device device(total, free);
  return resolve_setup(kShape, config, device);
}

EngineConfig cuda() {
  EngineConfig config;
  config.device = "cuda";
  return config;
}

TEST(Setup, OnAGpuTheCacheGetsTheUtilizationLessTheModel) {
  const EngineSetup setup = setup_on(cuda(), 16 * kGiBytes, 16 * kGiBytes);
  EXPECT_EQ(setup.config.max_num_batched_tokens, 16384);
  EXPECT_EQ(setup.config.max_num_seqs, 512);
  EXPECT_EQ(setup.dtype, DType::kBF16);
  EXPECT_EQ(setup.weight_bytes, 2 * size_t{596'049'920});
  const size_t block = setup.model.kv_bytes_per_token(DType::kBF16) * 64;
  const auto cache = static_cast<size_t>(setup.num_blocks) * block;
  EXPECT_LT(cache + setup.weight_bytes, 16 * kGiBytes * 9 / 10);
  EXPECT_GT(cache + setup.weight_bytes, 16 * kGiBytes * 6 / 10);

  // Memory that other programs use is not available for the cache.
  const EngineSetup shared = setup_on(cuda(), 16 * kGiBytes, 12 * kGiBytes);
  const auto fewer = static_cast<size_t>(setup.num_blocks - shared.num_blocks) * block;
  EXPECT_NEAR(static_cast<double>(fewer) / kGiBytes, 4, 0.1);
}

TEST(Setup, Fp8CacheHasNearlyTwiceTheBlocks) {
  EngineConfig config = cuda();
  const auto before =
      static_cast<double>(setup_on(config, 16 * kGiBytes, 16 * kGiBytes).num_blocks);
  config.kv_cache_dtype = "fp8";
  const EngineSetup setup = setup_on(config, 16 * kGiBytes, 16 * kGiBytes);
  EXPECT_EQ(setup.dtype, DType::kBF16);
  EXPECT_EQ(setup.kv_dtype, DType::kE4M3);
  // 8 KV heads with keys and values of 128 bytes and a scale, in 28 layers.
  EXPECT_EQ(setup.model.kv_bytes_per_token(setup.kv_dtype), size_t{2 * 28 * 8 * (128 + 4)});
  // A part of the memory is for 16-bit copies of one layer's keys.
  EXPECT_GT(static_cast<double>(setup.num_blocks), 1.88 * before);
  EXPECT_LT(static_cast<double>(setup.num_blocks), 1.94 * before);
}

// Idle prefixes take as much memory as the weights, but at least 128 MiB. A size that the user gave
// is used in full, and so is a GPU's memory.
TEST(Setup, OnTheCpuTheCacheKeepsAsMuchAsTheWeightsTake) {
  constexpr auto kAll = std::numeric_limits<int64_t>::max();
  EngineConfig config;
  config.device = "cpu";
  const EngineSetup setup = setup_on(config, 64 * kGiBytes, 64 * kGiBytes);
  const size_t block = setup.model.kv_bytes_per_token(DType::kBF16) * 64;
  EXPECT_EQ(setup.num_kept_blocks, static_cast<int64_t>(setup.weight_bytes / block));
  EXPECT_GT(setup.num_blocks, 2 * setup.num_kept_blocks);
  Device device(64 * kGiBytes, 64 * kGiBytes);
  const EngineSetup tiny =
      resolve_setup(std::string(NANOVLLM_SOURCE_DIR) + "/models/tiny-tales", config, device);
  EXPECT_EQ(tiny.num_kept_blocks, (128 << 20) / (6144 * 64));
  EXPECT_EQ(setup_on(cuda(), 16 * kGiBytes, 16 * kGiBytes).num_kept_blocks, kAll);
  config.kv_cache_memory_bytes = static_cast<int64_t>(2 * kGiBytes);
  EXPECT_EQ(setup_on(config, 64 * kGiBytes, 64 * kGiBytes).num_kept_blocks, kAll);
  config.kv_cache_memory_bytes = 0;
  config.num_gpu_blocks_override = 7;
  EXPECT_EQ(setup_on(config, 64 * kGiBytes, 64 * kGiBytes).num_kept_blocks, kAll);
}

TEST(Setup, GpuWithoutRoomForACacheIsRefusedUnlessItsSizeIsGiven) {
  EngineConfig config = cuda();
  EXPECT_THAT(
      [&] { setup_on(config, 16 * kGiBytes, 2 * kGiBytes); },
      ThrowsMessage<UserError>(AllOf(
          HasSubstr("no memory is left for the KV cache"), HasSubstr("2.00 are free"),
          HasSubstr("raise the utilization, lower"), HasSubstr("--gpu-memory-utilization 0.9"))));
  config.gpu_memory_utilization = 0.05;
  EXPECT_THAT([&] { setup_on(config, 16 * kGiBytes, 16 * kGiBytes); },
              ThrowsMessage<UserError>(HasSubstr("lets this program fill 0.80 more")));
  config.kv_cache_memory_bytes = static_cast<int64_t>(kGiBytes);
  EXPECT_EQ(setup_on(config, 16 * kGiBytes, 2 * kGiBytes).num_blocks,
            static_cast<int64_t>(kGiBytes / (114688 * 64)));
  config.kv_cache_memory_bytes = 0;
  config.num_gpu_blocks_override = 7;
  const EngineSetup few = setup_on(config, 16 * kGiBytes, 2 * kGiBytes);
  EXPECT_EQ(few.num_blocks, 7);
  EXPECT_EQ(few.config.max_num_seqs, 7);  // no step has more sequences than there are blocks
  EXPECT_EQ(few.config.max_num_batched_tokens, 7 * 64);
  EXPECT_EQ(few.config.max_model_len, 7 * 64);
}

// Of 16 GiB, another program holds 12 and an earlier engine of this process 1.
TEST(Setup, ErrorSaysWhoHoldsTheMemoryOfAGpu) {
  constexpr const char* kHolders =
      "of the GPU's 16.00 GiB, other programs and the driver hold 12.00, this process holds 1.00, "
      "and 3.00 are free";
  Device device(16 * kGiBytes, 3 * kGiBytes, kGiBytes);
  EngineConfig config = cuda();
  config.gpu_memory_utilization = 0.9;  // lets the program fill 1.40 more
  EXPECT_THAT([&] { resolve_setup(kShape, config, device); },
              ThrowsMessage<UserError>(AllOf(HasSubstr(kHolders), HasSubstr("fill 1.40 more"),
                                             HasSubstr("or end other programs"))));
  // There is room for some blocks, but not for the length that was asked for, or not for one.
  config.gpu_memory_utilization = 1;
  config.max_num_batched_tokens = 512;
  config.max_model_len = 40960;
  EXPECT_THAT([&] { resolve_setup(kShape, config, device); },
              ThrowsMessage<UserError>(
                  AllOf(HasSubstr("--max-model-len is 40960; the KV cache"), HasSubstr(kHolders))));
  config.max_model_len = 0;
  config.block_size = 16384;
  EXPECT_THAT([&] { resolve_setup(kShape, config, device); },
              ThrowsMessage<UserError>(
                  AllOf(HasSubstr("one block of 16384 tokens takes"), HasSubstr(kHolders))));
  // A size that the user gives has nothing to do with others.
  config.kv_cache_memory_bytes = 1 << 20;
  EXPECT_THAT([&] { resolve_setup(kShape, config, device); },
              ThrowsMessage<UserError>(Not(HasSubstr("hold"))));
}

// 65,536 sequences of a million tokens have block tables of 16 GiB.
TEST(Setup, BlockTablesAreCounted) {
  EngineConfig config;
  config.block_size = 16;
  config.max_num_seqs = 65536;
  config.max_num_batched_tokens = 1 << 24;
  config.num_gpu_blocks_override = 65536;
  for (const char* device : {"cpu", "cuda"}) {
    config.device = device;
    const auto setup_with = [&](size_t total) { return setup_on(config, total, total); };
    const EngineSetup setup = setup_with(512 * kGiBytes);
    EXPECT_EQ(setup.max_blocks_per_seq(), 40960 / 16);
    EXPECT_EQ(setup.table_bytes(), size_t{65536} * (40960 / 16) * 4);
    const size_t cache = setup.model.kv_bytes_per_token(setup.kv_dtype) * 16 * 65536;
    EXPECT_NO_THROW(setup_with(cache + setup.table_bytes()));
    EXPECT_THAT([&] { setup_with(cache + setup.table_bytes() - 1); },
                ThrowsMessage<UserError>(AllOf(HasSubstr("block tables of 65536 sequences 0.62"),
                                               HasSubstr("or --max-num-seqs, or raise"))));
  }
}

TEST(Setup, CacheLargerThanAllMemoryIsRefused) {
  EngineConfig config = cuda();
  config.num_gpu_blocks_override = 10'000;
  EXPECT_THAT([&] { setup_on(config, 16 * kGiBytes, 16 * kGiBytes); },
              ThrowsMessage<UserError>(HasSubstr("a KV cache of 10000 blocks")));
  config.num_gpu_blocks_override = 0;
  config.device = "cpu";
  config.kv_cache_memory_bytes = 17 * static_cast<int64_t>(kGiBytes);
  EXPECT_THAT([&] { setup_on(config, 16 * kGiBytes, 16 * kGiBytes); },
              ThrowsMessage<UserError>(HasSubstr("of 16.00 GiB in total")));
}

TEST(Setup, OnTheCpuStepsAreSmallerAndHoldAsManySequences) {
  EngineConfig config;
  config.device = "cpu";
  EXPECT_EQ(setup_on(config, 16 * kGiBytes, 16 * kGiBytes).config.max_num_batched_tokens, 2048);
  config.max_num_batched_tokens = 100;
  EXPECT_EQ(setup_on(config, 16 * kGiBytes, 16 * kGiBytes).config.max_num_seqs, 100);
  config.max_model_len = 1;
  EXPECT_THAT(
      [&] { setup_on(config, 16 * kGiBytes, 16 * kGiBytes); },
      ThrowsMessage<UserError>(HasSubstr("it must be at least 2, for a prompt and an answer")));
}

TEST(Setup, DtypeAutoIsTheCheckpointsAndBfloat16ForFloat32) {
  Json json = testing::json_file(kShape + "/config.json");
  const std::string folder = ::testing::TempDir() + "dtype_auto_" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  EngineConfig config;
  config.device = "cpu";
  const auto dtype = [&](const char* of_checkpoint) {
    json["torch_dtype"] = of_checkpoint;
    std::ofstream(folder + "/config.json") << json;
    Device device(16 * kGiBytes, 16 * kGiBytes);
    return resolve_setup(folder, config, device).dtype;
  };
  EXPECT_EQ(dtype("float32"), DType::kBF16);
  EXPECT_EQ(dtype("bfloat16"), DType::kBF16);
  EXPECT_EQ(dtype("float16"), DType::kF16);
  config.dtype = "float32";
  EXPECT_EQ(dtype("float16"), DType::kF32);
}

TEST(Setup, DeviceAutoIsTheCpuWithoutADriver) {
  if (has_cuda_driver()) GTEST_SKIP() << "this machine has a driver";
  EngineConfig config;
  config.threads = 3;
  EXPECT_THAT(make_backend(config)->describe(), HasSubstr("3"));
  EXPECT_EQ(config.device, "cpu");
  config.tensor_parallel_size = 2;  // the ranks share the threads
  EXPECT_THAT(make_backend(config)->describe(), HasSubstr("1"));
  config.threads = 0;
  EXPECT_NO_THROW(make_backend(config));
  config.device = "cuda";
  EXPECT_THROW(make_backend(config), UserError);
}

}  // namespace
}  // namespace nanovllm
