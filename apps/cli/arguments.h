#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/cli/command.h"

namespace nanovllm {

/// The words of the command line for CLI11's parser of `command`, which they name. Names of options
/// are rewritten, their values are not. As in vLLM:
/// - Names may have underscores. "-tp" and other short names become long ones: CLI11 supports only
///   one letter after a single dash. "-O3" becomes --optimization-level 3.
/// - "--x.y.z VALUE" becomes --x '{"y": {"z": VALUE}}', where several such words make one object.
/// - Every flag --x has an opposite, --no-x, and --enable-x is the opposite of --disable-x.
/// - "--model MODEL" becomes MODEL.
/// Besides, "--option=" becomes two words, the second one empty, because CLI11 would take the next
/// word as the value.
std::vector<std::string> words_for_parser(Command command, std::span<const std::string> words);

}  // namespace nanovllm
