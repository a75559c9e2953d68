#pragma once

#include <string>
#include <string_view>

namespace nanovllm {

/// Replaces everything that could control a terminal: control characters (C0, DEL, C1) and bytes
/// that are not valid UTF-8 become escape sequences such as "\x1b", "\n" and "\x9b". Texts from
/// files, options and models must pass through this before they are written to a terminal or a log.
/// With `keep_lines`, newlines and tabs are not replaced.
std::string escape_controls(std::string_view text, bool keep_lines = false);

}  // namespace nanovllm
