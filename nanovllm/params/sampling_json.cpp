#include "nanovllm/params/sampling_json.h"

#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/params/structured_json.h"

namespace nanovllm {

namespace {

void read(const Json& json, double& value) {
  const Json number = as_number(json);
  require(number.is_number(), "must be a number");
  value = number.get<double>();
}

void read(const Json& json, bool& value) {
  require(json.is_boolean(), "must be true or false");
  value = json.get<bool>();
}

Json whole_number(const Json& json) {
  Json number = as_number(json);
  // Whole numbers that 64 bits cannot hold have become floating-point numbers.
  if (number.is_number_float() && std::abs(number.get<double>()) >= 0x1p63)
    fail("is too {}; it must be a whole number of 64 bits",
         number.get<double>() < 0 ? "small" : "large");
  require(number.is_number_integer(), "must be a whole number");
  return number;
}

void read(const Json& json, int64_t& value) {
  const Json number = whole_number(json);
  require(!number.is_number_unsigned() ||
              number.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
          "is too large");
  value = number.get<int64_t>();
}

void read(const Json& json, int32_t& value) {
  int64_t wide = 0;
  read(json, wide);
  require(wide >= 0 && wide <= std::numeric_limits<int32_t>::max(), "must be a token id, not {}",
          wide);
  value = static_cast<int32_t>(wide);
}

void read(const Json& json, uint64_t& value) {
  const Json number = whole_number(json);
  value = number.is_number_unsigned() ? number.get<uint64_t>()
                                      : static_cast<uint64_t>(number.get<int64_t>());
}

void read(const Json& json, std::string& value) {
  require(json.is_string(), "must be a text");
  value = json.get<std::string>();
}

template <class T>
void read(const Json& json, std::vector<T>& values) {
  require(json.is_array(), "must be a list");
  values.clear();
  for (const Json& item : json) {
    try {
      read(item, values.emplace_back());
    } catch (const UserError& e) {
      fail("entry {} {}", values.size() - 1, e.what());
    }
  }
}

void read(const Json& json, std::map<int32_t, double>& values) {
  require(json.is_object(), "must be an object of token ids and biases");
  values.clear();
  for (const auto& [key, bias] : json.items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    require(error == std::errc() && end == key.data() + key.size() && id >= 0,
            "must have token ids as keys, not '{}'", key);
    read(bias, values[id]);
  }
}

void read(const Json& json, StructuredOutputs& value) {
  value = structured_outputs_from_json(json);
}

template <class T>
void read(const Json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) read(json, value.emplace());
}

/// Whether a field of type T has a separate value for JSON's null: only std::optional has one.
template <class T>
constexpr bool kHasNone = requires(T value) {
  value.reset();
};

/// Reads a field. If the JSON is null and the field has no value for that, it keeps its value,
/// unless FieldInfo::none_means gives another one.
template <class T>
void read_field(const Json& json, const FieldInfo& field, T& value) {
  if (json.is_null() && !kHasNone<T>) {
    if constexpr (std::same_as<T, int64_t>)
      if (field.none_means != 0) value = field.none_means;
  } else if (field.takes_one_text && !json.is_array()) {
    require(json.is_string(), "must be a text or a list of texts");
    read(Json::array({json}), value);
  } else {
    read(json, value);
  }
}

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  SamplingParams::for_each_field(
      [&](const FieldInfo& field, auto) { names.emplace_back(field.name); });
  return names;
}

/// Returns false if there is no such field.
bool read_field(const Json& json, const std::string& name, SamplingParams& params) {
  bool found = false;
  SamplingParams::for_each_field([&](const FieldInfo& field, auto member) {
    if (name != field.name) return;
    found = true;
    read_field(json, field, params.*member);
  });
  return found;
}

}  // namespace

bool is_sampling_field(std::string_view name) {
  bool found = false;
  SamplingParams::for_each_field(
      [&](const FieldInfo& field, auto) { found = found || name == field.name; });
  return found;
}

SamplingParams sampling_params_from_json(const Json& json, SamplingParams params,
                                         const std::string& where) {
  require(json.is_object(), "{}: must be an object", where);
  for (const auto& [name, value] : json.items()) {
    bool is_known = false;
    try {
      is_known = read_field(value, name, params);
    } catch (const UserError& e) {
      fail("{}: {} {}", where, name, e.what());
    }
    if (!is_known)
      fail("{}: '{}' is not a sampling parameter of this build{}", where, name,
           did_you_mean(name, field_names()));
  }
  try {
    params.validate();
  } catch (const UserError& e) {
    fail("{}: {}", where, e.what());
  }
  return params;
}

std::vector<int32_t> token_ids_from_json(const Json& json, const std::string& where) {
  std::vector<int32_t> ids;
  try {
    read(json, ids);
  } catch (const UserError& e) {
    fail("{}: {}", where, e.what());
  }
  return ids;
}

}  // namespace nanovllm
