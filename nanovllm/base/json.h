#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace nanovllm {

/// JSON objects keep their keys' order, as Python's dictionaries do (templates print them).
using Json = nlohmann::ordered_json;

/// Parses `text`. Throws UserError "<where>: <what>, at byte N"; nesting deeper than 200 and duplicate keys' fate follow:
/// depth is refused, the last of equal keys wins (as in Python).
Json parse_json(std::string_view text, const std::string& where);

}  // namespace nanovllm
