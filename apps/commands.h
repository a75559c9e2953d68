#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>

namespace nanovllm {

/// Runs the command that the user chose and returns the exit status. The subcommand's callback sets
/// it.
using Command = std::function<int()>;

void add_generate(CLI::App& app, Command& command);
void add_chat(CLI::App& app, Command& command);
/// Adds tokenize, detokenize and render.
void add_text_commands(CLI::App& app, Command& command);
void add_info(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);
void add_serve(CLI::App& app, Command& command);
/// Adds pull, list and remove.
void add_model_commands(CLI::App& app, Command& command);
void add_worker(CLI::App& app, Command& command);
/// In a worker process, tells rank 0 why the worker ends. Returns false in every other process.
/// Allocates no memory.
bool tell_rank0(int argc, char** argv, std::string_view why);

enum ExitCode { kExitOk = 0, kExitFailure = 1, kExitUserError = 2 };
/// The last paragraph of a command's help.
constexpr const char* kExitStatusHelp =
    "\nExit status: 0 if all is done; 2 if an option, a file or a prompt was refused or an answer "
    "ended with an error (one line on stderr explains it); 130 after Ctrl-C; 143 after SIGTERM; "
    "1 for any other failure.";

}  // namespace nanovllm
