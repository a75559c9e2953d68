#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/cli/command.h"

namespace nanovllm {

/// The help of a command in 80 columns. In a description or footer, lines that are not indented
/// form a paragraph, up to an empty or indented line; its lines are broken anew. Indented lines,
/// such as examples, are kept.
std::string help_of(Command command);

/// Appends the words of `text` to `out`, whose last line has `column` characters, and breaks lines
/// so that they fit in 80 columns; new lines begin with `indent` spaces.
void wrap(std::string& out, size_t column, size_t indent, std::string_view text);

/// The options of `command` that its help lists, without its positional arguments.
std::vector<Option> options_of(Command command);

/// Follows the words that name commands ("bench", "latency") and returns the last one. Throws
/// UserError for a word that is not a command.
Command find_command(Command program, std::span<const std::string> words);

/// The message of an error in the arguments `words`: what is wrong, what may be meant, and which
/// help describes it.
std::string explain(Command program, const ParseError& error, std::span<const std::string> words);

}  // namespace nanovllm
