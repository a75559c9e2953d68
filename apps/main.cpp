#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/arguments.h"
#include "apps/cli/completion.h"
#include "apps/cli/help.h"
#include "apps/cli/model_argument.h"
#include "commands.h"
#include "nanovllm/base/error.h"
#include "terminal.h"

namespace {

using namespace nanovllm;

constexpr const char* kVersion = "nanovllm " NANOVLLM_VERSION;

int num_arguments = 0;
char** given_arguments = nullptr;

// A worker sends its message to rank 0, which prints it.
int report(std::string_view what, int status) {
  if (!tell_rank0(num_arguments, given_arguments, what)) print_error(what);
  return status;
}

// Replaces a closed standard stream by a file on which every use fails, as on the closed stream.
// Otherwise the next opened file would get the stream's number, and output would be written to it.
void reserve_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // takes the least free number
}

// For an exception in a function that may not throw. The destructor of a JSON value is one: it
// allocates memory.
[[noreturn]] void end_in_one_line() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
    report("an error without a description", kExitFailure);
  } catch (const std::exception& e) {
    report(what_of(e), kExitFailure);
  }
  ::_exit(kExitFailure);
}

void add_help(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("help", "Describe a command");
  auto words = std::make_shared<std::vector<std::string>>();
  sub->add_option("COMMAND", *words, "The command, for example generate or bench latency");
  sub->footer(
      "Examples:\n"
      "  nanovllm help generate\n"
      "  nanovllm help bench latency\n"
      "\nExit status: 0, or 2 if there is no such command.");
  sub->callback([&app, &command, words] {
    command = [&app, words] {
      print_out(help_of(find_command(app, *words)));
      return static_cast<int>(kExitOk);
    };
  });
  sub = app.add_subcommand("version", "Print the version");
  sub->footer("Examples:\n  nanovllm version\n\nExit status: 0.");
  sub->callback([&command] {
    command = [] {
      print_out(std::string(kVersion) + "\n");
      return static_cast<int>(kExitOk);
    };
  });
}

int run(int argc, char** argv) {
  CLI::App app("Run language models in Hugging Face layout, from folders or from the hub.",
               "nanovllm");
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Print this help");
  app.set_version_flag("-v,-V,--version", kVersion, "Print the version");
  app.require_subcommand(1);
  app.footer(
      std::string("Examples:\n"
                  "  nanovllm generate models/tiny-tales -p \"Once upon a time\"\n"
                  "  nanovllm chat models/tiny-tales\n"
                  "  nanovllm chat Qwen/Qwen3-0.6B\n"
                  "  nanovllm info models/tiny-tales\n"
                  "  nanovllm bench throughput models/tiny-tales --json\n\n"
                  "'nanovllm COMMAND --help' or 'nanovllm help COMMAND' describes a command, "
                  "with examples.\n") +
      kExitStatusHelp);
  Command command;
  add_generate(app, command);
  add_chat(app, command);
  add_serve(app, command);
  add_text_commands(app, command);
  add_info(app, command);
  add_bench(app, command);
  add_model_commands(app, command);
  add_worker(app, command);
  add_help(app, command);
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const std::string first = words.empty() ? "" : words.front();
  if (first == "complete") {  // for the scripts in apps/completions/
    print_out(complete(app, {words.begin() + 1, words.end()}));
    return kExitOk;
  }
  std::vector<std::string> args = words;
  if (first != "worker")  // rank 0 writes names as the parser reads them
    args = words_for_parser(find_command(app, words), words, /*as_vllm=*/first == "serve");
  try {
    std::ranges::reverse(args);  // CLI11 expects the last one first
    app.parse(args);
  } catch (const CLI::CallForHelp&) {
    print_out(app.help());
    return kExitOk;
  } catch (const CLI::CallForVersion& e) {
    print_out(std::string(e.what()) + "\n");
    return kExitOk;
  } catch (const CLI::ParseError& e) {
    return report(explain(app, e, words), kExitUserError);
  }
  if (first != "worker") find_model_of(app);  // a worker gets rank 0's folder
  return command();
}

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_streams();
  num_arguments = argc;
  given_arguments = argv;
  std::set_terminate(end_in_one_line);
  handle_signals();
  try {
    return run(argc, argv);
  } catch (const OutputClosed&) {
    return kExitFailure;
  } catch (const UserError& e) {
    return report(e.what(), kExitUserError);
  } catch (const std::exception& e) {
    return report(what_of(e), kExitFailure);
  }
}
