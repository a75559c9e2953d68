#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace nanovllm {

/// JSON whose objects keep the order of their keys, as Python's dictionaries do; templates print
/// them in this order.
using Json = nlohmann::ordered_json;

/// Parses `text`. Throws UserError "<where>: not valid JSON: <what and where>". Also refuses more
/// than 200 levels of nesting, more than 20,000 keys in one object, and many objects of nearly that
/// size (progress.bounded-work). If an object has equal keys, the last one counts, as in Python.
Json parse_json(std::string_view text, const std::string& where);

/// The JSON text in one line, without a newline. Bytes that are not valid UTF-8 become U+FFFD.
std::string dump_json(const Json& json);

}  // namespace nanovllm
