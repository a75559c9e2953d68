#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "nanovllm/runtime/ranks/executor.h"

namespace nanovllm {

/// One rank in this process: steps run on a thread of their own, so that the caller schedules the
/// next one meanwhile.
class LocalExecutor : public Executor {
 public:
  using Run = std::function<void(const StepInput&, StepOutput&)>;

  explicit LocalExecutor(Run run);
  /// Steps that were submitted run to their end.
  ~LocalExecutor() override;

  void submit(const StepInput& input) override;
  const StepOutput& wait() override;

 private:
  // Two steps under way, and the one whose output the caller still reads.
  static constexpr uint64_t kNumSteps = 3;
  struct Step {
    std::vector<std::byte> input;
    StepOutput output;
    std::exception_ptr error;
  };
  void loop();
  Step& step(uint64_t number) { return steps_[number % kNumSteps]; }

  Run run_;
  std::array<Step, kNumSteps> steps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t num_submitted_ = 0, num_done_ = 0, num_waited_ = 0;
  bool stop_ = false;
  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace nanovllm
