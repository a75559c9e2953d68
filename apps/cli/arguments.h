#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

namespace nanovllm {

/// The words of the command line for CLI11's parser of `command`, which they name. Names of options
/// are rewritten, their values are not:
/// - "-tp" becomes --tensor-parallel-size: CLI11 supports only one letter after a single dash.
/// - "--option=" becomes two words, the second one empty: CLI11 would take the next word instead.
/// - With `as_vllm`, names may have underscores, and "--model MODEL" becomes MODEL.
std::vector<std::string> words_for_parser(const CLI::App& command,
                                          std::span<const std::string> words, bool as_vllm);

}  // namespace nanovllm
