#include "nanovllm/runtime/ranks/local_executor.h"

#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/threads.h"

namespace nanovllm {

LocalExecutor::LocalExecutor(std::unique_ptr<Executor> inner)
    : inner_(std::move(inner)),
      thread_(start_thread("the thread that runs the steps", [this] { loop(); })) {}

LocalExecutor::~LocalExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LocalExecutor::submit(const StepInput& input) {
  check(num_submitted_ - num_waited_ < 2, "more than two steps in flight");
  // The thread does not look at this step before num_submitted_ counts it.
  std::vector<std::byte>& copy = step(num_submitted_).input;
  clear_for_reuse(copy);
  copy.assign(input.bytes().begin(), input.bytes().end());
  {
    const std::lock_guard lock(mutex_);
    ++num_submitted_;
  }
  changed_.notify_all();
}

const StepOutput& LocalExecutor::wait() {
  check(num_waited_ < num_submitted_, "wait without a step in flight");
  Step& waited = step(num_waited_);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_done_ > num_waited_; });
  ++num_waited_;
  if (waited.error) std::rethrow_exception(std::exchange(waited.error, nullptr));
  return waited.output;
}

void LocalExecutor::loop() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return stop_ || num_done_ < num_submitted_; });
    if (num_done_ == num_submitted_) return;
    Step& current = step(num_done_);
    lock.unlock();
    try {
      inner_->submit(StepInput(current.input));
      current.output = inner_->wait();
    } catch (...) {
      current.error = std::current_exception();
    }
    lock.lock();
    ++num_done_;
    lock.unlock();
    changed_.notify_all();
  }
}

}  // namespace nanovllm
