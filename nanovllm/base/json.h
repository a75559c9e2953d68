#pragma once

#include <cstddef>
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

/// JSON with more keys than parse_json() reads: the header of a file of weights, for example. Its
/// objects are sorted maps, which stay fast with any number of keys.
using SortedJson = nlohmann::json;

/// Parses `text`. Throws UserError, also if an object has the same key twice (one of the two values
/// would be hidden), for more than 8 levels of nesting, for a key of more than 4096 bytes, and for
/// more than `max_values` keys and values in total (progress.bounded-work).
SortedJson parse_sorted_json(std::string_view text, const std::string& where, size_t max_values);

/// A value from a file for a message: printable, in one line, and shortened if it is long.
std::string printable(const Json& value);

/// The JSON text in one line, without a newline. Bytes that are not valid UTF-8 become U+FFFD.
std::string dump_json(const Json& json);

}  // namespace nanovllm
