#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "nanovllm/runtime/ranks/executor.h"

namespace nanovllm {

/// The queue of a backend that has none, such as the CPU's: runs an executor's steps on a thread,
/// so that the caller can meanwhile schedule the next step and make the late part of this one.
class LocalExecutor : public Executor {
 public:
  explicit LocalExecutor(std::unique_ptr<Executor> inner);
  /// Waits until the submitted steps have ended, but not for the late part of one.
  ~LocalExecutor() override;

  void submit(const StepInput& input) override;
  void complete(const StepInput& late) override;
  const StepOutput& wait() override;

 private:
  struct Step {
    std::vector<std::byte> input, late;
    bool is_complete = true;  ///< `late` is there, or the step needs none
    StepOutput output;
    std::exception_ptr error;
  };
  void loop();
  /// Changes what the mutex protects, and tells the other thread.
  void notify(auto change) {
    {
      const std::lock_guard lock(mutex_);
      change();
    }
    changed_.notify_all();
  }
  Step& step(uint64_t number) { return steps_[number % steps_.size()]; }

  std::unique_ptr<Executor> inner_;
  std::array<Step, 2> steps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t num_submitted_ = 0, num_done_ = 0, num_waited_ = 0;
  bool stop_ = false;
  std::jthread thread_;  // last, because it uses all members above
};

}  // namespace nanovllm
