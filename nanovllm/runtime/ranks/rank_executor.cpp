#include "nanovllm/runtime/ranks/rank_executor.h"

#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/runtime/model_runner.h"

namespace nanovllm {

RankExecutor::RankExecutor(std::unique_ptr<WorkerProcesses> workers,
                           std::unique_ptr<Executor> local)
    : workers_(std::move(workers)), local_(std::move(local)) {
  workers_->ranks().barrier();
  workers_->set_ready();
}

void RankExecutor::submit(const StepInput& input) {
  try {
    workers_->channel().send(input);
  } catch (const EngineDead&) {
    // Rank 0's part of the step fails as well, and wait() tells.
  }
  local_->submit(input);
}

const StepOutput& RankExecutor::wait() {
  try {
    return local_->wait();
  } catch (const std::exception& e) {
    workers_->abort(fmt::format("rank 0: {}", what_of(e)));
    workers_->ranks().throw_aborted();
  }
}

void run_steps(RankMemory& memory, ModelRunner& runner) {
  // A device runs a step while the next one is prepared: only where none comes is there time to
  // wait for it.
  constexpr int kMilliseconds = 10;
  StepChannel& channel = memory.channel();
  StepOutput output;
  memory.ranks().barrier();
  for (int num_launched = 0;;) {
    const StepChannel::Received received = channel.receive(num_launched > 0 ? kMilliseconds : -1);
    if (received == StepChannel::Received::kStop) return;
    if (received == StepChannel::Received::kStep) {
      runner.launch(channel.step());
      ++num_launched;
    }
    if (received == StepChannel::Received::kStep && num_launched < 2) continue;
    runner.collect(output);
    channel.done();
    --num_launched;
  }
}

}  // namespace nanovllm
