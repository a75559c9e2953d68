#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

/// The values of a JSON object, with their types checked. A null counts as an absent key; an absent
/// key without a default is an error. Errors name file and key.
class JsonFields {
 public:
  JsonFields(const Json& object, std::string prefix) : object_(object), prefix_(std::move(prefix)) {
    require(object_.is_object(), "{}must be a JSON object", prefix_);
  }

  /// The value of `key`, or none if it is absent or null.
  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool contains(const char* key) const { return object_.contains(key); }
  std::vector<std::string> keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object_.items()) keys.push_back(key);
    return keys;
  }

  int64_t integer(const char* key, int64_t most, std::optional<int64_t> absent = {}) const {
    return get(key, absent, fmt::format("an integer from 1 to {}", most), [&](const Json& value) {
      return value.is_number_integer() && value >= 1 && value <= most;
    });
  }
  double positive(const char* key, std::optional<double> absent = {}) const {
    return get(key, absent, "a number above 0", [](const Json& value) {
      return value.is_number() && value > 0 && value <= std::numeric_limits<float>::max();
    });
  }
  bool boolean(const char* key, bool absent) const {
    return get(key, std::optional(absent), "true or false", &Json::is_boolean);
  }
  std::string text(const char* key, const char* absent) const {
    return get(key, std::optional<std::string>(absent), "a string", &Json::is_string);
  }
  JsonFields object(const char* key) const {
    return {get(key, std::optional<Json>(), "an object or null", &Json::is_object),
            fmt::format("{}{}.", prefix_, key)};
  }
  [[noreturn]] void refuse(const char* key, const char* why) const {
    fail("{}{} is {}, which is not supported: {}", prefix_, key, printable(object_.at(key)), why);
  }

  const std::string& prefix() const { return prefix_; }

 private:
  template <class T, class IsRight>
  T get(const char* key, const std::optional<T>& absent, std::string_view right,
        const IsRight& is_right) const {
    const Json* value = find(key);
    if (value == nullptr && absent) return *absent;
    require(value != nullptr, "{}{} is missing", prefix_, key);
    require(std::invoke(is_right, *value), "{}{} is {}; it must be {}", prefix_, key,
            printable(*value), right);
    return value->get<T>();
  }

  Json object_;
  std::string prefix_;  // "FILE: ", then the names of the objects around, such as "rope_scaling."
};

}  // namespace nanovllm
