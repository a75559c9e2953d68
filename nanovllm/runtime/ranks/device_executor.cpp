#include "nanovllm/runtime/ranks/device_executor.h"

#include <utility>

namespace nanovllm {

DeviceExecutor::DeviceExecutor(std::unique_ptr<ModelRunner> runner) : runner_(std::move(runner)) {}

void DeviceExecutor::submit(const StepInput& input) {
  if (error_) return;
  try {
    runner_->launch(input);
  } catch (...) {
    error_ = std::current_exception();
  }
}

const StepOutput& DeviceExecutor::wait() {
  // A device that failed once has lost what later steps need.
  if (error_) std::rethrow_exception(error_);
  try {
    runner_->collect(output_);
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
  return output_;
}

}  // namespace nanovllm
