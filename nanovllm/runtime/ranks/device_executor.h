#pragma once

#include <exception>
#include <memory>

#include "nanovllm/runtime/model_runner.h"
#include "nanovllm/runtime/ranks/executor.h"

namespace nanovllm {

/// One rank in this process on a device that queues its steps itself: the caller's thread hands
/// them over.
class DeviceExecutor : public Executor {
 public:
  explicit DeviceExecutor(std::unique_ptr<ModelRunner> runner);

  void submit(const StepInput& input) override;
  const StepOutput& wait() override;

 private:
  std::unique_ptr<ModelRunner> runner_;
  StepOutput output_;
  std::exception_ptr error_;  // of a step that could not be launched; those after it cannot either
};

}  // namespace nanovllm
