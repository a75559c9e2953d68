#pragma once

#include <string>
#include <string_view>

namespace nanovllm {

/// The text without anything that steers a terminal: control characters (C0, DEL, C1) and bytes
/// that are not UTF-8 are written out as in "\x1b", "\n", "\x9b"; everything else stays. What
/// comes from files, options and models passes here before it reaches a terminal or a log.
/// With `keep_lines`, newlines and tabs stay as well.
std::string escape_controls(std::string_view text, bool keep_lines = false);

}  // namespace nanovllm
