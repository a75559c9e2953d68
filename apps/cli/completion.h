#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace nanovllm {

/// What may stand in place of the last of `words`, the words after the program's name: a line
/// "CANDIDATE<tab>DESCRIPTION" for each command, option or value that begins with it, or one of the
/// lines "<folders>" and "<files>". The scripts in apps/completions/ show it to the user of a
/// shell, so they need no list of options.
std::string complete(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace nanovllm
