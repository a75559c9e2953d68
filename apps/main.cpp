#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/arguments.h"
#include "apps/cli/completion.h"
#include "apps/cli/help.h"
#include "apps/cli/model_argument.h"
#include "apps/cli/vllm_options.h"
#include "commands.h"
#include "nanovllm/base/error.h"
#include "nanovllm/base/system/limits.h"
#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/hub/verify.h"
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
// Without that, the next opened file would get the stream's number, and output would be written to
// it.
void reserve_standard_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF)
      ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);  // takes the least free number
}

// Ends the program after an exception in a function that may not throw, such as the destructor of a
// JSON value, which allocates memory.
[[noreturn]] void end_in_one_line() {
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
    report("an error without a description", kExitFailure);
  } catch (const std::exception& e) {
    report(what_of(e), kExitFailure);
  }
  ::_exit(kExitFailure);
}

void add_help(Command program) {
  Command sub = program.add_command("help", "Describe a command");
  auto words = std::make_shared<std::vector<std::string>>();
  sub.add_value("COMMAND", *words, "The command, for example generate or bench latency")
      .take_several();
  sub.footer(
      "Examples:\n"
      "  nanovllm help generate\n"
      "  nanovllm help bench latency\n"
      "\nExit status: 0, or 2 if there is no such command.");
  sub.action([program, words] {
    print_out(help_of(find_command(program, *words)));
    return kExitOk;
  });
  sub = program.add_command("version", "Print the version");
  sub.footer("Examples:\n  nanovllm version\n\nExit status: 0.");
  sub.action([] {
    print_out(std::string(kVersion) + "\n");
    return kExitOk;
  });
}

int run(int argc, char** argv) {
  Program program("nanovllm",
                  "Run language models in Hugging Face layout, from folders or from the hub.");
  program.require_command();
  program.footer(
      std::string("Examples:\n"
                  "  nanovllm generate models/tiny-tales -p \"Once upon a time\"\n"
                  "  nanovllm chat models/tiny-tales\n"
                  "  nanovllm chat Qwen/Qwen3-0.6B\n"
                  "  nanovllm info models/tiny-tales\n"
                  "  nanovllm bench throughput models/tiny-tales --json\n\n"
                  "'nanovllm COMMAND --help' or 'nanovllm help COMMAND' describes a command, "
                  "with examples.\n") +
      kExitStatusHelp);
  add_generate(program);
  add_chat(program);
  add_serve(program);
  add_text_commands(program);
  add_grammar(program);
  add_info(program);
  add_bench(program);
  add_model_commands(program);
  add_worker(program);
  add_help(program);
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const std::string first = words.empty() ? "" : words.front();
  if (first == "complete") {  // for the scripts in apps/completions/
    print_out(complete(program, std::span(words).subspan(1)));
    return kExitOk;
  }
  std::vector<std::string> args = words;
  const bool is_worker = first == "worker";
  if (!is_worker) {  // rank 0 writes names as the parser reads them
    const Command named = find_command(program, words);
    add_vllm_options(named);
    args = words_for_parser(named, words);
  }
  try {
    const Program::Request request = program.parse(std::move(args));
    if (request == Program::Request::kHelp) print_out(help_of(program.chosen()));
    if (request == Program::Request::kVersion) print_out(std::string(kVersion) + "\n");
    if (request != Program::Request::kCommand) return kExitOk;
  } catch (const ParseError& e) {
    return report(explain(program, e, words), kExitUserError);
  }
  if (is_worker) return program.run();  // a worker gets the folder from rank 0
  const Command chosen = program.chosen();
  // The first line of a server's log says where it listens, so the server writes this one.
  if (const std::string note = note_without_effect(chosen); !note.empty() && first != "serve")
    log().info("{}", note);
  const std::string folder = find_model_of(chosen);
  try {
    return program.run();
  } catch (const UserError& e) {
    const std::string hint = hub::verify_hint(folder, e.what());
    if (hint.empty()) throw;
    throw UserError(e.what() + hint);
  }
}

int run_and_report(int argc, char** argv) {
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

}  // namespace

int main(int argc, char** argv) {
  reserve_standard_streams();
  num_arguments = argc;
  given_arguments = argv;
  std::set_terminate(end_in_one_line);
  handle_signals();
  try {
    return run_within_limits([=] { return run_and_report(argc, argv); });
  } catch (const std::exception& e) {
    return report(what_of(e), kExitUserError);
  }
}
