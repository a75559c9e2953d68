#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>

#include "commands.h"
#include "nanovllm/base/error.h"
#include "terminal.h"

namespace {

using namespace nanovllm;

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

// "-tp" is vLLM's spelling, but CLI11 supports only one letter after a single dash.
std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> args;
  for (int i = argc; i-- > 1;) {
    const std::string arg = argv[i];
    if (arg == "-tp") args.emplace_back("--tensor-parallel-size");
    else if (arg.starts_with("-tp=")) args.push_back("--tensor-parallel-size" + arg.substr(3));
    else args.push_back(arg);
  }
  return args;
}

int run(int argc, char** argv) {
  CLI::App app("nanovllm: run language models from Hugging Face checkpoint folders", "nanovllm");
  app.set_version_flag("--version", "nanovllm " NANOVLLM_VERSION);
  app.require_subcommand(1);
  app.get_formatter()->column_width(38);  // the longest option and its value
  app.footer(std::string("Examples:\n"
                         "  nanovllm generate models/tiny-tales --prompt \"Once upon a time\"\n"
                         "  nanovllm chat models/tiny-tales\n"
                         "  nanovllm info models/tiny-tales\n"
                         "  nanovllm bench throughput models/tiny-tales --json\n"
                         "'nanovllm COMMAND --help' describes a command, with examples.\n") +
             kExitStatusHelp);
  Command command;
  add_generate(app, command);
  add_chat(app, command);
  add_text_commands(app, command);
  add_info(app, command);
  add_bench(app, command);
  add_worker(app, command);
  try {
    app.parse(arguments(argc, argv));
  } catch (const CLI::Success& e) {  // --help, --version
    std::ostringstream text;
    const int status = app.exit(e, text, text);
    print_out(text.str());
    return status;
  } catch (const CLI::ParseError& e) {
    const auto chosen = app.get_subcommands();
    if (chosen.empty() && argc > 1 && argv[1][0] != '-')
      return report(fmt::format("'{}' is not a command (see 'nanovllm --help')", argv[1]),
                    kExitUserError);
    std::string help = "nanovllm";
    for (const CLI::App* sub = &app; !sub->get_subcommands().empty();) {
      sub = sub->get_subcommands().front();
      help += " " + sub->get_name();
    }
    return report(std::string(e.what()) + " (see '" + help + " --help')", kExitUserError);
  }
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
