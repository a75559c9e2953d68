#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <string_view>

namespace nanovllm {

/// Runs the command that was chosen; returns the exit status. Set by the subcommand's callback.
using Command = std::function<int()>;

void add_generate(CLI::App& app, Command& command);
void add_chat(CLI::App& app, Command& command);
/// tokenize, detokenize and render.
void add_text_commands(CLI::App& app, Command& command);
void add_info(CLI::App& app, Command& command);
void add_bench(CLI::App& app, Command& command);
void add_worker(CLI::App& app, Command& command);
/// In a worker's process hands rank 0 the reason why it ends; false in every other one. Needs no
/// memory.
bool tell_rank0(int argc, char** argv, std::string_view why);

enum ExitCode { kExitOk = 0, kExitFailure = 1, kExitUserError = 2 };
/// For the end of a command's help.
constexpr const char* kExitStatusHelp =
    "Exit status: 0 done; 2 an option, a file or a prompt was refused or an answer ended with an\n"
    "error, with one line on stderr; 130 after Ctrl-C, 143 after SIGTERM; 1 anything else.";

}  // namespace nanovllm
