#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <memory>

#include "commands.h"
#include "nanovllm/runtime/ranks/worker.h"
#include "options.h"

namespace nanovllm {

namespace {

struct WorkerOptions {
  std::string model;
  EngineConfig config;
  int rank = 0, memory = -1, parent = -1;
};

}  // namespace

// Looks at the arguments by itself: they may be what could not be read.
bool tell_rank0(int argc, char** argv, std::string_view why) {
  if (argc < 4 || std::string_view(argv[1]) != "worker") return false;
  for (int i = 2; i + 1 < argc; ++i)
    if (std::string_view(argv[i]) == "--parent")
      return ::send(std::atoi(argv[i + 1]), why.data(), why.size(), MSG_NOSIGNAL) > 0;
  return false;
}

// What rank 0 starts for each other rank; nobody types it.
void add_worker(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("worker", "A rank of another process")->group("");
  auto o = std::make_shared<WorkerOptions>();
  add_model_argument(*sub, o->model);
  sub->add_option("--rank", o->rank)->required();
  sub->add_option("--memory", o->memory, "Descriptor of the ranks' memory")->required();
  sub->add_option("--parent", o->parent, "Descriptor that ends with rank 0")->required();
  add_engine_options(*sub, o->config);
  sub->callback([&command, o] {
    command = [o] {
      std::signal(SIGTERM, SIG_DFL);  // an end that rank 0 can name
      return run_worker(o->model, o->config, o->rank, o->memory, o->parent);
    };
  });
}

}  // namespace nanovllm
