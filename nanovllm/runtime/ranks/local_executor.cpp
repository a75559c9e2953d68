#include "nanovllm/runtime/ranks/local_executor.h"

#include <stdexcept>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/threads.h"

namespace nanovllm {

LocalExecutor::LocalExecutor(std::unique_ptr<Executor> inner)
    : inner_(std::move(inner)),
      thread_(start_thread("the thread that runs the steps", [this] { loop(); })) {}

LocalExecutor::~LocalExecutor() {
  notify([&] { stop_ = true; });
  thread_.join();
}

void LocalExecutor::submit(const StepInput& input) {
  check(num_submitted_ - num_waited_ < 2, "more than two steps in flight");
  // The thread does not look at this step before num_submitted_ counts it.
  Step& next = step(num_submitted_);
  clear_for_reuse(next.input);
  next.input.assign(input.bytes().begin(), input.bytes().end());
  next.is_complete = !input.has_late();
  notify([&] { ++num_submitted_; });
}

void LocalExecutor::complete(const StepInput& late) {
  check(num_submitted_ > 0 && !step(num_submitted_ - 1).is_complete, "no step needs a late part");
  Step& newest = step(num_submitted_ - 1);
  clear_for_reuse(newest.late);
  newest.late.assign(late.bytes().begin(), late.bytes().end());
  notify([&] { newest.is_complete = true; });
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
      const StepInput input(current.input);
      inner_->submit(input);
      if (input.has_late()) {
        lock.lock();
        changed_.wait(lock, [&] { return current.is_complete || stop_; });
        lock.unlock();
        if (!current.is_complete) throw std::runtime_error("a step without its late part");
        inner_->complete(StepInput(current.late));
      }
      current.output = inner_->wait();
    } catch (...) {
      current.error = std::current_exception();
    }
    notify([&] { ++num_done_; });
  }
}

}  // namespace nanovllm
