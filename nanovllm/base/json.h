#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace nanovllm {

/// JSON objects keep their keys' order, as Python's dictionaries do (templates print them).
using Json = nlohmann::ordered_json;

/// Parses `text`. Throws UserError "<where>: not valid JSON: <what and where>"; more than 200
/// levels or 20,000 keys of one object are refused, and many objects of nearly as many. The last of
/// equal keys wins, as in Python.
Json parse_json(std::string_view text, const std::string& where);

/// One line without its end. Bytes that are not UTF-8 become U+FFFD.
std::string dump_json(const Json& json);

}  // namespace nanovllm
