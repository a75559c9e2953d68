#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nanovllm/ops/communicator.h"
#include "nanovllm/ops/cpu/machine/memory.h"
#include "nanovllm/runtime/model_runner.h"
#include "nanovllm/runtime/ranks/local_executor.h"
#include "nanovllm/runtime/setup.h"

namespace nanovllm::testing {

/// All ranks of a model on the CPU, each on a thread of this process. All must draw the same
/// tokens.
class ThreadRanks : public Executor {
 public:
  ThreadRanks(const std::string& folder, const EngineSetup& setup, int world)
      : memory_(cpu::allocate(Communicator::bytes())) {
    std::vector<std::unique_ptr<ModelRunner>> runners(static_cast<size_t>(world));
    for (int r = 0; r < world; ++r) {
      ranks_.push_back(std::make_unique<Communicator>(memory_.get(), Rank{r, world}));
      std::unique_ptr<Backend> backend = make_cpu_backend(1);
      backend->connect(*ranks_.back(), setup.model.vocab_size);
      runners[static_cast<size_t>(r)] =
          std::make_unique<ModelRunner>(folder, setup, std::move(backend), Rank{r, world});
    }
    for (std::unique_ptr<ModelRunner>& runner : runners)
      executors_.push_back(std::make_unique<LocalExecutor>(std::move(runner)));
  }

  void submit(const StepInput& input) override {
    for (const auto& executor : executors_) executor->submit(input);
  }
  void complete(const StepInput& late) override {
    for (const auto& executor : executors_) executor->complete(late);
  }
  const StepOutput& wait() override {
    const StepOutput& first = executors_[0]->wait();
    for (size_t r = 1; r < executors_.size(); ++r) {
      const StepOutput& other = executors_[r]->wait();
      EXPECT_EQ(other.values.size(), first.values.size());
      for (size_t i = 0; i < first.values.size(); ++i) {
        EXPECT_EQ(other.values[i].sequence, first.values[i].sequence);
        EXPECT_EQ(other.values[i].token_id, first.values[i].token_id);
        EXPECT_EQ(other.values[i].status, first.values[i].status);
      }
    }
    return first;
  }

 private:
  Buffer memory_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::vector<std::unique_ptr<LocalExecutor>> executors_;
};

}  // namespace nanovllm::testing
