#include "nanovllm/runtime/ranks/executor.h"

#include <optional>
#include <utility>

#include "nanovllm/base/arguments.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/system/machine.h"
#include "nanovllm/model/shard.h"
#include "nanovllm/runtime/model_runner.h"
#include "nanovllm/runtime/ranks/local_executor.h"
#include "nanovllm/runtime/ranks/worker_processes.h"
#include "nanovllm/runtime/setup.h"

namespace nanovllm {

namespace {

/// Rank 0 in this process, and each other rank in its own process. If a step fails in any of them,
/// a process ends or the ranks hang, the calls throw EngineDead with the reason.
class RankExecutor : public Executor {
 public:
  /// `local` runs rank 0. Waits until all ranks are ready.
  RankExecutor(std::unique_ptr<WorkerProcesses> workers, std::unique_ptr<Executor> local)
      : workers_(std::move(workers)), local_(std::move(local)) {
    workers_->ranks().barrier();
    workers_->set_ready();
  }

  void submit(const StepInput& input) override { send(input, &Executor::submit); }
  void complete(const StepInput& late) override { send(late, &Executor::complete); }
  const StepOutput& wait() override try { return local_->wait(); } catch (const std::exception& e) {
    end_all(e);
  }

 private:
  void send(const StepInput& input, void (Executor::*to_rank_0)(const StepInput&)) try {
    workers_->channel().send(input);
    (local_.get()->*to_rank_0)(input);
  } catch (const std::exception& e) {
    end_all(e);
  }

  /// Throws the first reason: if rank 0 failed because another rank ended, the end of that rank.
  [[noreturn]] void end_all(const std::exception& error) {
    workers_->abort(fmt::format("rank 0: {}", what_of(error)));
    workers_->ranks().throw_aborted();
  }

  std::unique_ptr<WorkerProcesses> workers_;
  std::unique_ptr<Executor> local_;  // destroyed first: its last steps need the others
};

/// Starts the processes of the other ranks. Throws UserError, also if the model is too small.
std::unique_ptr<WorkerProcesses> start_workers(const std::string& model,
                                               const EngineConfig& config) {
  const auto world = static_cast<int>(config.tensor_parallel_size);
  make_shard(load_model_spec(model, config), {0, world});  // throws before any process is started
  std::vector<std::string> arguments = to_arguments(config);
  arguments.insert(arguments.begin(), {"worker", model});  // what apps/worker.cpp reads
  std::string binary = config.worker_path;
  if (binary.empty())
    binary = find_program("nanovllm", reinterpret_cast<const void*>(&start_workers),
                          "the other ranks run it; name it in worker_path");
  return std::make_unique<WorkerProcesses>(binary, arguments, world, config.step_timeout);
}

}  // namespace

std::unique_ptr<Executor> start_ranks(const std::string& model, const EngineConfig& given,
                                      EngineSetup& setup) {
  EngineConfig config = given;
  std::unique_ptr<WorkerProcesses> workers;  // outlives the backend, which may use its memory
  std::unique_ptr<Backend> backend = make_backend(config);
  config.choose_batched_tokens();  // for the workers too
  if (config.tensor_parallel_size > 1) workers = start_workers(model, config);
  setup = resolve_setup(model, config, *backend, workers ? &workers->ranks() : nullptr);
  std::optional<SocketBinding> socket;  // of rank 0's memory and of the thread of its steps
  if (workers && config.device == "cpu") socket.emplace(0);
  std::unique_ptr<Executor> executor = std::make_unique<ModelRunner>(
      model, setup, std::move(backend), workers ? workers->ranks().rank() : Rank{});
  // A GPU queues its steps itself; the CPU needs a thread that computes them.
  if (config.device == "cpu") executor = std::make_unique<LocalExecutor>(std::move(executor));
  if (workers == nullptr) return executor;
  return std::make_unique<RankExecutor>(std::move(workers), std::move(executor));
}

}  // namespace nanovllm
