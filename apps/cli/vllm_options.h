#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace nanovllm {

/// Options of `vllm serve` that this program has not, so that what starts vLLM can start it too.
/// Those that change nothing here are accepted; those that ask for something that is not there are
/// refused with the reason. Neither kind is in the help.
void add_vllm_options(CLI::App& app);

/// A list option of vLLM: a JSON array of texts, or a single text. Throws UserError that names the
/// option.
std::vector<std::string> texts_of(const std::string& option, const std::vector<std::string>& given);

}  // namespace nanovllm
