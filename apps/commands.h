#pragma once

#include <string_view>

#include "apps/cli/command.h"

namespace nanovllm {

void add_generate(Command program);
void add_chat(Command program);
/// Adds the commands tokenize, detokenize and render.
void add_text_commands(Command program);
/// Adds the commands of `grammar`.
void add_grammar(Command program);
void add_info(Command program);
void add_bench(Command program);
void add_serve(Command program);
/// Adds the commands pull, list and remove.
void add_model_commands(Command program);
void add_worker(Command program);
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
