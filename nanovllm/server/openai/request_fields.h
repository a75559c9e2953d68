#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "nanovllm/base/json.h"
#include "nanovllm/params/unsupported.h"
#include "nanovllm/server/http/api_error.h"

// The fields of a request's body. A null counts as an absent field. Every error is an ApiError that
// names the field in its message and as its `param`.
namespace nanovllm::server {

/// Throws the error of a field, whose name begins the message: "<name> <format>".
template <class... Args>
[[noreturn]] void refuse_field(const std::string& name,
                               fmt::format_string<std::type_identity_t<Args>...> format,
                               Args&&... args) {
  throw ApiError(400, name + " " + fmt::format(format, std::forward<Args>(args)...), name);
}

/// Throws unless the body is an object.
void check_is_object(const Json& body);

/// The value of a field, or null if there is none.
const Json* find_field(const Json& object, const std::string& name);

bool bool_field(const Json& object, const std::string& name, bool absent);
/// A text that is not empty, of at most kMaxNameBytes. Empty: the field is absent.
std::string name_field(const Json& object, const std::string& name);
int64_t integer_field(const Json& object, const std::string& name, int64_t absent);
/// Refuses a field that asks for what this program cannot (params/unsupported.h).
void refuse_unsupported_field(const std::string& name, const Json& value,
                              UnsupportedName::Place place);
/// The same for all fields of a body, whose values may hold secrets and are not shown.
void refuse_unsupported_fields(const Json& body, UnsupportedName::Place place);

/// Calls `read`. A UserError whose text begins with the name of a field, or of an entry of one
/// ("messages[2]"), becomes the ApiError of that field. `rename` says how the client calls it.
template <class Read, class Rename = std::identity>
auto naming_field(Read&& read, Rename&& rename = {}) {
  try {
    return read();
  } catch (const ApiError&) {
    throw;
  } catch (const UserError& e) {
    const std::string text = e.what();
    const size_t end = text.find_first_of(" :[");
    if (end == std::string::npos) throw;
    const std::string name = rename(text.substr(0, end));
    throw ApiError(400, name + text.substr(end), name);
  }
}

/// Reads a request that was translated into one of another API. The errors of the fields that are
/// the first of a pair get the second name, which the client has used.
template <class Read>
auto with_names_of_client(
    std::initializer_list<std::pair<std::string_view, std::string_view>> names, Read&& read) {
  try {
    return read();
  } catch (const ApiError& e) {
    const std::string text = e.what();
    for (const auto& [name, here] : names)
      if (e.param == name && text.starts_with(name))
        throw ApiError(e.status, std::string(here) + text.substr(name.size()), std::string(here));
    throw;
  }
}

}  // namespace nanovllm::server
