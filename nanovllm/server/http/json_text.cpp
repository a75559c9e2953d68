#include "nanovllm/server/http/json_text.h"

#include <charconv>
#include <limits>

namespace nanovllm::server {

namespace {

template <class Number>
void append_digits(std::string& to, Number value) {
  char digits[32];  // an int64_t has at most 20 characters, the shortest form of a float 15
  to.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

}  // namespace

void append_number(std::string& to, int64_t value) { append_digits(to, value); }

void append_logprob(std::string& to, float value) {
  constexpr float kLowest = -9999;
  const bool is_finite = value >= kLowest && value <= std::numeric_limits<float>::max();
  append_digits(to, is_finite ? value : kLowest);  // no comparison with NaN is true
}

void append_ids(std::string& to, std::span<const int32_t> ids) {
  to += '[';
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i != 0) to += ',';
    append_number(to, ids[i]);
  }
  to += ']';
}

}  // namespace nanovllm::server
