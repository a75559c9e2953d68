#include "nanovllm/runtime/ranks/step_channel.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "nanovllm/base/error.h"
#include "nanovllm/runtime/ranks/worker_processes.h"

namespace nanovllm {
namespace {

StepInput make_step(uint64_t number, size_t num_tokens, std::vector<std::byte>& buffer) {
  StepArrays arrays;
  arrays.token_ids.resize(num_tokens);
  std::iota(arrays.token_ids.begin(), arrays.token_ids.end(), static_cast<int32_t>(number));
  return arrays.write(number, buffer);
}

/// Maps the same memory again, as a worker does.
RankMemory worker_of(const RankMemory& memory, Rank rank) {
  return {FileDescriptor(dup(memory.fd())), rank};
}

// The largest step of 512 sequences of 40,000 tokens, with their ids and block tables, has more
// than a hundred megabytes, which is many times the size of the ring.
TEST(StepChannel, StepsOfAnySizeArriveWholeAndInOrder) {
  RankMemory memory(3);
  constexpr uint64_t kNumSteps = 40;
  const auto tokens_of = [](uint64_t step) {
    return step == 20 ? size_t{512} * 40'000 : step * step * 300;
  };
  std::vector<std::jthread> workers;
  for (int r = 1; r < 3; ++r)
    workers.emplace_back([&, r] {
      RankMemory own = worker_of(memory, {r, 3});
      ASSERT_TRUE(own.channel().is_same_build());
      for (uint64_t step = 0; step < kNumSteps; ++step) {
        ASSERT_EQ(own.channel().receive(-1), StepChannel::Received::kInput);
        const StepInput input = own.channel().input();
        ASSERT_EQ(input.header().step, step);
        ASSERT_EQ(input.token_ids.size(), tokens_of(step));
        for (size_t i = 0; i < input.token_ids.size(); ++i)
          ASSERT_EQ(input.token_ids[i], static_cast<int32_t>(step + i));
        own.channel().done();
      }
      ASSERT_EQ(own.channel().receive(1), StepChannel::Received::kNothing);
      ASSERT_EQ(own.channel().receive(-1), StepChannel::Received::kStop);
    });
  std::vector<std::byte> buffer;
  for (uint64_t step = 0; step < kNumSteps; ++step)
    memory.channel().send(make_step(step, tokens_of(step), buffer));
  while (memory.channel().is_busy()) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  memory.channel().stop();
}

TEST(StepChannel, LatePartsArriveBetweenTheirStepAndTheNextOne) {
  RankMemory memory(2);
  constexpr uint64_t kNumSteps = 50;
  std::jthread worker([&] {
    RankMemory own = worker_of(memory, {1, 2});
    for (uint64_t step = 0; step < kNumSteps; ++step) {
      ASSERT_EQ(own.channel().receive(-1), StepChannel::Received::kInput);
      ASSERT_EQ(own.channel().input().header().step, step);
      own.channel().done();
      ASSERT_EQ(own.channel().receive(-1), StepChannel::Received::kInput);
      const StepInput late = own.channel().input();
      ASSERT_EQ(late.header().step, step);
      ASSERT_EQ(late.mask_words.size(), step * 2000);  // of several slots of the ring
      for (const int32_t word : late.mask_words) ASSERT_EQ(word, static_cast<int32_t>(step));
      own.channel().done();
    }
  });
  std::vector<std::byte> buffer;
  StepArrays late;
  for (uint64_t step = 0; step < kNumSteps; ++step) {
    memory.channel().send(make_step(step, step * 30, buffer));
    late.mask_words.assign(step * 2000, static_cast<int32_t>(step));
    memory.channel().send(late.write(step, buffer));
  }
  while (memory.channel().is_busy()) std::this_thread::yield();
}

TEST(StepChannel, AbortEndsTheWaitForSpace) {
  RankMemory memory(2);
  std::vector<std::byte> buffer;
  const StepInput step = make_step(1, 1 << 20, buffer);
  std::jthread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    memory.ranks().abort("nobody reads");
  });
  EXPECT_THROW(memory.channel().send(step), EngineDead);
  EXPECT_TRUE(memory.channel().is_busy());
}

TEST(StepChannel, MemoryOfAnotherBuildIsDetected) {
  RankMemory memory(2);
  RankMemory worker = worker_of(memory, {1, 2});
  EXPECT_TRUE(worker.channel().is_same_build());
  for (const std::array<uint64_t, 2>& other :
       {std::array{uint64_t{1}, kBuildChecksum + 1}, {2, kBuildChecksum}}) {
    ASSERT_EQ(pwrite(memory.fd(), other.data(), sizeof other, 0),
              static_cast<ssize_t>(sizeof other));
    EXPECT_FALSE(worker.channel().is_same_build());
  }
}

}  // namespace
}  // namespace nanovllm
