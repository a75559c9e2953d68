#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <memory>

#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "commands.h"
#include "nanovllm/runtime/ranks/executor.h"

namespace nanovllm {

namespace {

struct WorkerOptions {
  std::string model;
  EngineConfig config;
  int rank = 0, memory = -1, parent = -1;
};

}  // namespace

// This function searches the arguments itself, because the parser may have failed on them.
bool tell_rank0(int argc, char** argv, std::string_view why) {
  if (argc < 4 || std::string_view(argv[1]) != "worker") return false;
  for (int i = 2; i + 1 < argc; ++i)
    if (std::string_view(argv[i]) == "--parent")
      return ::send(std::atoi(argv[i + 1]), why.data(), why.size(), MSG_NOSIGNAL) > 0;
  return false;
}

// Rank 0 starts this command for each other rank; it is not for users.
void add_worker(Command program) {
  Command sub = program.add_command("worker", "A rank of another process");
  sub.hide();
  auto o = std::make_shared<WorkerOptions>();
  add_model_argument(sub, o->model);
  sub.add_required("--rank", o->rank, "");
  sub.add_required("--memory", o->memory, "Descriptor of the memory that the ranks share");
  sub.add_required("--parent", o->parent, "Descriptor that is closed when rank 0 ends");
  add_engine_options(sub, o->config);
  sub.action([o] {
    std::signal(SIGTERM, SIG_DFL);  // so that rank 0 sees which signal ended the worker
    return run_worker(o->model, o->config, o->rank, o->memory, o->parent);
  });
}

}  // namespace nanovllm
