#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>

#include "apps/bench/bench.h"
#include "apps/bench/cold_traffic.h"
#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "apps/terminal.h"
#include "nanovllm/base/arguments.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/system/child_process.h"
#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

namespace {

constexpr int64_t kMostPrompts = 65536, kMostRounds = 1000;

struct ColdOptions {
  std::string model;
  EngineConfig config;
  ColdTraffic traffic{.name = "both"};
  bool json = false;
  int parent = -1;  // a socket, if a process of this command started this one
};

void check_options(const ColdOptions& options) {
  const auto within = [](int64_t value, int64_t most, const char* option) {
    require(value >= 1 && value <= most, "{} is {}; it must be from 1 to {}", option, value, most);
  };
  within(options.traffic.num_prompts, kMostPrompts, "--num-prompts");
  within(options.traffic.num_rounds, kMostRounds, "--rounds");
  require(options.traffic.max_len >= 1, "--max-len is {}; it must be at least 1",
          options.traffic.max_len);
  require(options.traffic.request_rate > 0, "--request-rate is {}; it must be more than 0",
          options.traffic.request_rate);
  require(options.config.trace.empty() || options.traffic.name != "both",
          "--trace needs --traffic at-once or arriving, since each is a process of its own");
}

/// Measures `traffic` and sets `result` if the returned exit status is 0.
int in_this_process(const ColdOptions& options, Json& result) {
  EngineConfig config = options.config;
  // With prefix caching the later rounds would find the prompts of the first one.
  config.enable_prefix_caching = false;
  std::optional<Json> measured = measure_cold(options.model, config, options.traffic);
  if (!measured) return InterruptGuard::exit_status();
  result = *std::move(measured);
  return kExitOk;
}

/// Reads the socket until its other end is closed. Returns false after Ctrl-C.
bool read_all(int socket, std::string& text) {
  constexpr int kMilliseconds = 100;  // Ctrl-C may come just before poll()
  std::array<char, 4096> buffer;
  while (!InterruptGuard::interrupted()) {
    pollfd end = {socket, POLLIN, 0};
    if (::poll(&end, 1, kMilliseconds) <= 0) continue;
    const ssize_t n = ::recv(socket, buffer.data(), buffer.size(), 0);
    if (n == 0 || (n < 0 && errno != EINTR)) return true;
    if (n > 0) text.append(buffer.data(), static_cast<size_t>(n));
  }
  return false;
}

/// Measures `traffic` in a new process of this program, which prints its own errors.
int in_new_process(const ColdOptions& options, Json& result) {
  std::array<int, 2> ends;
  const bool connected = ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0;
  if (!connected) throw std::runtime_error(fmt::format("socketpair: {}", std::strerror(errno)));
  const FileDescriptor ours(ends[0]);
  FileDescriptor theirs(ends[1]);
  const ColdTraffic& traffic = options.traffic;
  std::vector<std::string> arguments = {"/proc/self/exe",
                                        "bench",
                                        "cold",
                                        "--traffic",
                                        traffic.name,
                                        "--num-prompts",
                                        std::to_string(traffic.num_prompts),
                                        "--max-len",
                                        std::to_string(traffic.max_len),
                                        "--request-rate",
                                        fmt::format("{}", traffic.request_rate),
                                        "--rounds",
                                        std::to_string(traffic.num_rounds),
                                        "--parent",
                                        std::to_string(theirs.get())};
  const std::vector<std::string> engine_options = to_arguments(options.config);
  arguments.insert(arguments.end(), engine_options.begin(), engine_options.end());
  arguments.insert(arguments.end(), {"--", options.model});
  ChildProcess process;
  if (const int error = process.start(arguments, std::array{theirs.get()}); error != 0)
    throw std::runtime_error(fmt::format("cannot start this program: {}", std::strerror(error)));
  theirs = FileDescriptor();
  std::string text;
  const bool complete = read_all(ours.get(), text);
  if (!complete) process.kill();
  const int status = process.wait();
  if (!complete) return InterruptGuard::exit_status();
  if (WIFSIGNALED(status))
    throw std::runtime_error(
        fmt::format("the process of the traffic {} was ended by signal {} ({})", traffic.name,
                    WTERMSIG(status), strsignal(WTERMSIG(status))));
  if (WEXITSTATUS(status) == kExitOk) result = parse_json(text, "the result of " + traffic.name);
  return WEXITSTATUS(status);
}

/// Runs in the new process: sends the result to the process that started it.
int for_parent(const ColdOptions& options) {
  end_with_parent(options.parent, options.parent);
  // This process is in the background of its terminal, where it shows a progress bar, and a
  // terminal may stop background processes that write to it (stty tostop).
  std::signal(SIGTTOU, SIG_IGN);
  Json result;
  const int status = in_this_process(options, result);
  if (status != kExitOk) return status;
  const std::string text = dump_json(result);
  const ssize_t n = ::send(options.parent, text.data(), text.size(), MSG_NOSIGNAL);
  return n == static_cast<ssize_t>(text.size()) ? kExitOk : kExitFailure;
}

int cold(const ColdOptions& options) {
  if (options.parent >= 0) return for_parent(options);
  check_options(options);
  const bool both = options.traffic.name == "both";
  // A model that is loaded in this process must not delay Ctrl-C, so then there is no guard yet.
  std::optional<InterruptGuard> guard;
  if (both) guard.emplace();
  Json results = Json::array();
  for (const char* name : {"at-once", "arriving"}) {
    if (!both && options.traffic.name != name) continue;
    ColdOptions one = options;
    one.traffic.name = name;
    Json result;
    const int status = both ? in_new_process(one, result) : in_this_process(one, result);
    if (status != kExitOk) return status;
    if (!options.json) print_out((results.empty() ? "" : "\n") + cold_table(result));
    results.push_back(std::move(result));
  }
  if (options.json) print_out(dump_json(results) + "\n");
  return kExitOk;
}

}  // namespace

void add_cold(Command bench) {
  Command sub =
      bench.add_command("cold", "Measure how a process that has just started serves, and how soon");
  auto options = std::make_shared<ColdOptions>();
  ColdTraffic& traffic = options->traffic;
  add_model_argument(sub, options->model);
  sub.add_choice("--traffic", traffic.name, "at-once|arriving|both",
                 "All requests at the start, or one after the other at random times");
  sub.add_value("--num-prompts", traffic.num_prompts, "Requests of a round")
      .type_name("N")
      .show_default();
  sub.add_value("--max-len", traffic.max_len,
                "Most tokens of a prompt, and of an answer; at most half of --max-model-len")
      .type_name("TOKENS")
      .show_default();
  sub.add_value("--request-rate", traffic.request_rate, "Arriving requests a second")
      .type_name("R")
      .show_default();
  sub.add_value("--rounds", traffic.num_rounds, "How often a process serves the same requests")
      .type_name("N")
      .show_default();
  sub.add_flag("--json", options->json, "Print one JSON array");
  sub.add_value("--parent", options->parent, "").group("");  // hidden from users
  add_engine_options(sub, options->config);
  for (const char* name : {"--logprobs-mode", "--no-enable-prefix-caching"})
    sub.remove_option(name);
  sub.footer(std::string(R"(Examples:
  nanovllm bench cold models/tiny-tales --num-prompts 8
  nanovllm bench cold FOLDER --request-rate 10 --json
  nanovllm bench cold FOLDER --load-format dummy   # needs only config.json

Each traffic runs in a new process, which first generates one token after a prompt of 32, and then
serves the same requests in each round. A request has 100 to --max-len random tokens (fewer if the
context is short), and so has its answer. End tokens and the prefix cache are off, and the
temperature is 0.6. So the first round differs from the last one only by what the process does once.

The times above the table, until the engine is ready and until the first token, begin with the start
of the process. The time of a step is that of one call of LLMEngine::step(). The time to the first
token of a request begins when the request arrives, even if the engine is busy then. The last line
divides the figures of the first round by those of the last one.

With --json, each traffic is one object of an array, with an array 'rounds' in it. With --traffic
at-once or arriving, that traffic runs in the process of the command itself.
)") + kExitStatusHelp);
  sub.action([options] { return cold(*options); });
}

}  // namespace nanovllm
