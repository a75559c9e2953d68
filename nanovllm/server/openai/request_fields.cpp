#include "nanovllm/server/openai/request_fields.h"

#include <limits>

#include "nanovllm/server/openai/limits.h"

namespace nanovllm::server {

void check_is_object(const Json& body) {
  if (!body.is_object()) throw ApiError(400, "the body must be a JSON object");
}

const Json* find_field(const Json& object, const std::string& name) {
  const auto at = object.find(name);
  return at == object.end() || at->is_null() ? nullptr : &*at;
}

bool bool_field(const Json& object, const std::string& name, bool absent) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) refuse_field(name, "must be true or false, not {}", printable(*value));
  return value->get<bool>();
}

std::string name_field(const Json& object, const std::string& name) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return {};
  if (!value->is_string() || value->string().empty())
    refuse_field(name, "must be a text that is not empty, not {}", printable(*value));
  const auto& text = value->string();
  if (text.size() > kMaxNameBytes)
    refuse_field(name, "has {} bytes; at most {} are allowed", text.size(), kMaxNameBytes);
  return text;
}

int64_t integer_field(const Json& object, const std::string& name, int64_t absent) {
  const Json* value = find_field(object, name);
  if (value == nullptr) return absent;
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const Json number = as_number(*value);
  const bool is_right = number.is_number_integer() &&
                        (!number.is_number_unsigned() || number.get<uint64_t>() <= kMost);
  if (!is_right) refuse_field(name, "must be a whole number of 64 bits, not {}", printable(*value));
  return number.get<int64_t>();
}

void refuse_unsupported_field(const std::string& name, const Json& value,
                              UnsupportedName::Place place) {
  naming_field([&] { refuse_unsupported(name, value, place); });
}

void refuse_unsupported_fields(const Json& body, UnsupportedName::Place place) {
  for (const auto& [name, value] : body.items()) {
    const UnsupportedName* found = find_unsupported(name, place);
    if (found != nullptr && !found->is_harmless_json(value)) refuse_field(name, "is not supported");
  }
}

}  // namespace nanovllm::server
