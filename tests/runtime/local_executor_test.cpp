#include "nanovllm/runtime/ranks/local_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <latch>
#include <stdexcept>

namespace nanovllm {
namespace {

StepInput make_step(uint64_t number, std::vector<std::byte>& buffer) {
  StepArrays arrays;
  arrays.token_ids.assign(number, static_cast<int32_t>(number));
  return arrays.write(number, buffer);
}

/// A rank whose steps are a function of their input.
class Scripted : public Executor {
 public:
  using Run = std::function<void(const StepInput&, StepOutput&)>;
  explicit Scripted(Run run) : run_(std::move(run)) {}
  void submit(const StepInput& input) override {
    output_.clear();
    run_(input, output_);
  }
  void complete(const StepInput& late) override {
    for (const int32_t word : late.mask_words) output_.values.push_back({.token_id = word});
  }
  const StepOutput& wait() override { return output_; }

 private:
  Run run_;
  StepOutput output_;
};

std::unique_ptr<Executor> scripted(Scripted::Run run) {
  return std::make_unique<Scripted>(std::move(run));
}

TEST(LocalExecutor, RunsStepsInOrderAndCopiesTheirInput) {
  LocalExecutor executor(scripted([](const StepInput& input, StepOutput& output) {
    for (const int32_t id : input.token_ids)
      output.values.push_back({.sequence = static_cast<uint64_t>(id)});
  }));
  std::vector<std::byte> buffer;
  executor.submit(make_step(1, buffer));
  for (uint64_t number = 2; number < 200; ++number) {
    executor.submit(make_step(number, buffer));
    const StepOutput& output = executor.wait();
    ASSERT_EQ(output.values.size(), number - 1);
    EXPECT_EQ(output.values[0].sequence, number - 1);
  }
}

TEST(LocalExecutor, SubmitReturnsWhileTheStepRuns) {
  std::latch released(1);
  std::atomic<int> runs = 0;
  LocalExecutor executor(scripted([&](const StepInput&, StepOutput&) {
    released.wait();
    ++runs;
  }));
  std::vector<std::byte> buffer;
  executor.submit(make_step(1, buffer));
  executor.submit(make_step(2, buffer));
  EXPECT_EQ(runs, 0);
  released.count_down();
  executor.wait();
  executor.wait();
  EXPECT_EQ(runs, 2);
}

StepInput make_late_step(uint64_t number, std::vector<std::byte>& buffer) {
  StepArrays arrays;
  arrays.outputs.push_back({.num_late_words = 1});
  return arrays.write(number, buffer);
}
StepInput make_late(int32_t word, std::vector<std::byte>& buffer) {
  StepArrays arrays;
  arrays.late_outputs = {0};
  arrays.mask_words = {word};
  return arrays.write(0, buffer);
}

// order.late
TEST(LocalExecutor, StepsWaitForTheirLatePartAndNobodyElseDoes) {
  std::atomic<int> runs = 0;
  LocalExecutor executor(scripted([&](const StepInput&, StepOutput&) { ++runs; }));
  std::vector<std::byte> buffer;
  for (int32_t number = 0; number < 200; ++number) {
    executor.submit(make_step(1, buffer));
    executor.submit(make_late_step(2, buffer));
    EXPECT_TRUE(executor.wait().values.empty());  // of the first one
    executor.complete(make_late(number, buffer));
    const StepOutput& output = executor.wait();
    ASSERT_EQ(output.values.size(), 1U);
    EXPECT_EQ(output.values[0].token_id, number);
  }
  EXPECT_EQ(runs, 400);
  EXPECT_THROW(executor.complete(make_late(0, buffer)), std::logic_error);
}

TEST(LocalExecutor, EndsWithoutALatePartThatNeverComes) {
  std::vector<std::byte> buffer;
  LocalExecutor executor(scripted([](const StepInput&, StepOutput&) {}));
  executor.submit(make_late_step(1, buffer));
}

TEST(LocalExecutor, ExceptionsReachWait) {
  LocalExecutor executor(scripted([](const StepInput& input, StepOutput&) {
    if (input.header().step == 2) throw std::runtime_error("step 2");
  }));
  std::vector<std::byte> buffer;
  executor.submit(make_step(1, buffer));
  executor.submit(make_step(2, buffer));
  executor.wait();
  EXPECT_THROW(executor.wait(), std::runtime_error);
  executor.submit(make_step(3, buffer));
  EXPECT_NO_THROW(executor.wait());
}

TEST(StepInput, SizesThatDisagreeAreRefused) {
  std::vector<std::byte> buffer;
  StepArrays arrays;
  arrays.rows.push_back({});
  arrays.token_ids = {1, 2, 3};
  arrays.outputs.push_back({9, 1, 0});
  const StepInput input = arrays.write(5, buffer);
  EXPECT_EQ(input.rows.size(), 1u);
  EXPECT_EQ(input.token_ids[2], 3);
  EXPECT_EQ(input.outputs[0].sequence, 9u);
  EXPECT_THROW(StepInput(std::span(buffer).first(buffer.size() - 4)), std::logic_error);
  EXPECT_THROW(StepInput(std::span(buffer).first(4)), std::logic_error);  // less than a header
  StepInput::Header header = input.header();
  header.counts[2] = 1000;
  std::memcpy(buffer.data(), &header, sizeof header);
  EXPECT_THROW(StepInput{buffer}, std::logic_error);
}

}  // namespace
}  // namespace nanovllm
