#pragma once

#include <string>
#include <string_view>

#include "nanovllm/base/json.h"

namespace nanovllm::server {

/// The types of JSON that a value may have, as bits.
using ValueTypes = unsigned;
enum ValueType : ValueTypes {
  kStringValue = 1,
  kIntegerValue = 2,
  kNumberValue = 4,
  kBooleanValue = 8,
  kNullValue = 16,
  kObjectValue = 32,
  kArrayValue = 64
};

/// The types that a JSON schema allows; 0 if it does not say. The function follows "type" (a name
/// or a list), "anyOf", "oneOf", "allOf", "enum", "const" and references into `root`, the document
/// that contains the schema. It reads only a limited number of schemas (progress.bounded-work), so
/// a reference may lead back to itself.
ValueTypes types_of_schema(const Json& schema, const Json& root);

/// The JSON text of a value that a model has written without quotes. The value is a string unless
/// the types allow another reading: numbers, true, false and null, objects and arrays, which may
/// also be written as Python does. If a string is possible as well, the other reading wins. JSON
/// that the model wrote stays byte for byte.
std::string json_of_value(std::string_view text, ValueTypes types);

}  // namespace nanovllm::server
