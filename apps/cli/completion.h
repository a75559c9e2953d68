#pragma once

#include <span>
#include <string>

#include "apps/cli/command.h"

namespace nanovllm {

/// What may stand in place of the last of `words`, the words after the program's name: a line
/// "CANDIDATE<tab>DESCRIPTION" for each command, option or value that begins with it, or one of the
/// lines "<folders>" and "<files>". The scripts in apps/completions/ show it to the user of a
/// shell, so they need no list of options.
std::string complete(Command program, std::span<const std::string> words);

}  // namespace nanovllm
