#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "nanovllm/base/json.h"

// Functions that write JSON straight into a buffer. A stream has a chunk for each token; building a
// tree of Json for each chunk would cost more than everything else that the server does.
namespace nanovllm::server {

void append_number(std::string& to, int64_t value);

/// Appends a log-probability with the digits that a float needs. JSON has no -infinity; it becomes
/// -9999, as in vLLM and in OpenAI's description, and so does NaN.
void append_logprob(std::string& to, float value);

void append_ids(std::string& to, std::span<const int32_t> ids);

/// These append a member of an object: `name`, which is all that stands before the value, as in
/// {"id": or ,"created": without spaces, and the value.
inline void append_member(std::string& to, std::string_view name, std::string_view text) {
  append_json_string(to += name, text);
}
inline void append_member(std::string& to, std::string_view name, int64_t number) {
  append_number(to += name, number);
}
inline void append_member(std::string& to, std::string_view name, std::span<const int32_t> ids) {
  append_ids(to += name, ids);
}

}  // namespace nanovllm::server
