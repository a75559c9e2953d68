#include <optional>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/child_process.h"
#include "nanovllm/base/system/machine.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/runtime/model_runner.h"
#include "nanovllm/runtime/ranks/executor.h"
#include "nanovllm/runtime/ranks/worker_processes.h"
#include "nanovllm/runtime/setup.h"

namespace nanovllm {

/// Runs the steps that rank 0 sends, until rank 0 stops.
static void run_steps(RankMemory& memory, ModelRunner& runner) {
  // The device computes a step while the next one is prepared. So the rank waits for the result
  // only if no other step arrives during this time.
  constexpr int kMilliseconds = 10;
  StepChannel& channel = memory.channel();
  memory.ranks().barrier();
  int num_in_flight = 0;
  // The newest step's late part comes next. Until then no step is waited for: that would change the
  // slots, whose lists the newest step still needs.
  bool needs_late = false;
  for (;;) {
    const bool may_wait = num_in_flight > 0 && !needs_late;
    const StepChannel::Received received = channel.receive(may_wait ? kMilliseconds : -1);
    if (received == StepChannel::Received::kStop) return;
    if (received == StepChannel::Received::kInput && needs_late) {
      runner.complete(channel.input());
      channel.done();
      needs_late = false;
      if (num_in_flight < 2) continue;
    } else if (received == StepChannel::Received::kInput) {
      needs_late = channel.input().has_late();
      runner.submit(channel.input());
      if (++num_in_flight < 2 || needs_late) continue;
    }
    runner.wait();
    channel.done();
    --num_in_flight;
  }
}

int run_worker(const std::string& model, EngineConfig config, int rank, int memory_fd,
               int parent_fd) {
  end_with_parent(parent_fd, memory_fd);
  log().set_level(spdlog::level::off);
  RankMemory memory(FileDescriptor(memory_fd),
                    {rank, static_cast<int>(config.tensor_parallel_size)});
  if (!memory.channel().is_same_build()) return kExitOtherBuild;
  Communicator& ranks = memory.ranks();
  try {
    std::unique_ptr<Backend> backend = make_backend(config, rank);
    std::optional<SocketBinding> socket;
    if (config.device == "cpu") socket.emplace(rank);
    const EngineSetup setup = resolve_setup(model, config, *backend, &ranks);
    ModelRunner runner(model, setup, std::move(backend), ranks.rank());
    run_steps(memory, runner);
    return 0;
  } catch (const UserError& e) {
    ranks.abort(e.what(), /*is_user_error=*/true);
  } catch (const std::exception& e) {
    ranks.abort(fmt::format("rank {}: {}", rank, what_of(e)));
  }
  return 1;
}

}  // namespace nanovllm
