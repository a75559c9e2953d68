// After the start of an engine, no request waits until the kernel of a GEMM is chosen
// (docs/architecture.md, "A step"): on one GPU, and on each of two.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <thread>

#include "nanovllm/base/system/child_process.h"
#include "nanovllm/runtime/model_runner.h"
#include "nanovllm/runtime/ranks/worker_processes.h"
#include "nanovllm/runtime/setup.h"
#include "tests/gpus.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kShape = NANOVLLM_SOURCE_DIR "/bench/shapes/Qwen3-0.6B";
/// Names the memory of the ranks for the process of rank 1, which runs the same test.
constexpr const char* kMemory = "NANOVLLM_TEST_RANK_MEMORY";
constexpr int32_t kNumBlocks = 1024, kBlockSize = 64;

/// Steps of a runner, without an engine.
class Steps {
 public:
  explicit Steps(ModelRunner& runner) : runner_(runner) {}

  /// Adds new tokens of a slot, the last of which is sampled. A slot that starts gets its blocks,
  /// from number `first_block` on.
  void add(int32_t slot, int32_t start, int32_t num_tokens, std::optional<int32_t> first_block) {
    const auto row = static_cast<int32_t>(arrays_.rows.size());
    if (first_block) {
      SlotSetup setup;
      setup.slot = slot;
      setup.temperature = 1;
      if (slot % 2 == 1) setup.top_k = 20;
      arrays_.setups.push_back(setup);
      for (int32_t i = 0; i * kBlockSize < start + num_tokens; ++i)
        arrays_.block_updates.push_back({slot, i, *first_block + i});
    }
    arrays_.rows.push_back({.slot = slot, .start = start, .num_tokens = num_tokens});
    arrays_.token_ids.insert(arrays_.token_ids.end(), static_cast<size_t>(num_tokens), 1);
    arrays_.outputs.push_back({.sequence = 0, .slot = slot, .row = row, .offset = num_tokens - 1});
  }
  void run() {
    runner_.submit(arrays_.write(++number_, buffer_));
    runner_.wait();
    arrays_.clear();
  }

 private:
  ModelRunner& runner_;
  StepArrays arrays_;
  std::vector<std::byte> buffer_;
  uint64_t number_ = 0;
};

/// One rank: steps of many sizes after the start. Returns what the backend says about its choices.
std::string choices_after_steps(int rank, int world, Communicator* ranks) {
  EngineConfig config;
  config.device = "cuda";
  config.load_format = "dummy";
  config.num_gpu_blocks_override = kNumBlocks;
  config.tensor_parallel_size = world;
  config.use_cache = false;
  std::unique_ptr<Backend> backend = make_backend(config, rank);
  const Backend& device = *backend;
  const EngineSetup setup = resolve_setup(kShape, config, *backend, ranks);
  ModelRunner runner(kShape, setup, std::move(backend), {rank, world});

  Steps steps(runner);
  const auto max_seqs = static_cast<int32_t>(setup.config.max_num_seqs);
  for (int32_t slot = 0; slot < max_seqs; ++slot) steps.add(slot, 0, 1, slot);
  steps.run();
  int32_t position = 0;
  for (int32_t num_rows = 1; num_rows <= max_seqs; num_rows += num_rows < 40 ? 1 : 59) {
    position = position % (kBlockSize - 1) + 1;
    for (int32_t slot = 0; slot < num_rows; ++slot) steps.add(slot, position, 1, std::nullopt);
    steps.run();
  }
  const auto max_tokens = static_cast<int32_t>(setup.config.max_num_batched_tokens);
  for (const int32_t num_tokens :
       {2,   3,   5,   9,    17,   33,   65,   100,  129,  200,  256,  257,       300,
        500, 513, 700, 1000, 1025, 1500, 2047, 2049, 3000, 5000, 9000, max_tokens}) {
    steps.add(0, 0, num_tokens, max_seqs);
    steps.run();
  }
  for (const int32_t num_tokens : {50, 500, 5000}) {  // a prompt beside answers
    steps.add(0, 0, num_tokens, max_seqs);
    for (int32_t slot = 1; slot < 60; ++slot) steps.add(slot, 1, 1, std::nullopt);
    steps.run();
  }
  return device.describe_cache({});
}

TEST(GpuStart, NoKernelIsChosenAfterIt) {
  if (num_gpus() < 1) GTEST_SKIP() << "needs a GPU; none is here";
  EXPECT_THAT(choices_after_steps(0, 1, nullptr), Not(HasSubstr("after the start")));
}

TEST(GpuStart, NoKernelIsChosenAfterItOnEitherOfTwo) {
  if (num_gpus() < 2) GTEST_SKIP() << "needs two GPUs; " << num_gpus() << " are here";
  const auto run_rank = [](Communicator& ranks) {
    try {
      EXPECT_THAT(choices_after_steps(ranks.rank().index, 2, &ranks),
                  Not(HasSubstr("after the start")));
    } catch (const std::exception& error) {
      ranks.abort(error.what());
      ADD_FAILURE() << "rank " << ranks.rank().index << ": " << error.what();
    }
  };
  if (const char* const memory_fd = std::getenv(kMemory)) {
    RankMemory memory(FileDescriptor(std::atoi(memory_fd)), {1, 2});
    return run_rank(memory.ranks());
  }
  RankMemory memory(2);
  ::setenv(kMemory, std::to_string(memory.fd()).c_str(), 1);
  ChildProcess rank1;
  const int error = rank1.start(
      {"/proc/self/exe", "--gtest_filter=GpuStart.NoKernelIsChosenAfterItOnEitherOfTwo"},
      std::array{memory.fd()});
  ::unsetenv(kMemory);
  ASSERT_EQ(error, 0);
  std::jthread watcher([&] {
    const int status = rank1.wait();
    EXPECT_EQ(status, 0) << "rank 1 has failed; its output is above";
    if (status == 0) return;
    memory.ranks().abort("rank 1 has failed");
    memory.ranks().end_waits();
  });
  run_rank(memory.ranks());
}

}  // namespace
}  // namespace nanovllm::testing
