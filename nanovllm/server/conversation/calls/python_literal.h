#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nanovllm::server {

/// The JSON text of a literal of Python: a string, a whole or decimal number, True, False, None (or
/// JSON's true, false, null), or a list or dictionary of literals. Nothing if `text` is something
/// else, or is nested more than 100 levels deep.
std::optional<std::string> json_of_python(std::string_view text);

/// The text of a JSON object for the arguments of a call in Python: `a=1, b="x"`. Nothing if `text`
/// is something else, or if a name occurs twice.
std::optional<std::string> json_of_keywords(std::string_view text);

}  // namespace nanovllm::server
