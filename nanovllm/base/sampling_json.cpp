#include "nanovllm/base/sampling_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <limits>
#include <map>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/base/system/files.h"

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

namespace {

constexpr const char* kOverrides = "--override-generation-config";

/// Puts the values of a generation_config.json that are sampling parameters into `values`. Null
/// removes one.
void take_sampling(const Json& config, Json& values) {
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    if (field.generation_config == nullptr) return;
    const auto at = config.find(field.generation_config);
    if (at == config.end()) return;
    if (at->is_null()) values.erase(field.name);
    else values[field.name] = *at;
  });
}

/// Refuses what vLLM would take from an override, too, such as eos_token_id.
void check_overrides(const Json& overrides) {
  std::vector<std::string> known;
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    if (field.generation_config != nullptr) known.emplace_back(field.generation_config);
  });
  for (const auto& [name, value] : overrides.items())
    require(std::ranges::count(known, name) > 0, "{}: {} is not one of {}{}", kOverrides,
            printable(name), join(known, ", "), did_you_mean(name, known));
}

/// The file whose values count, unless `source` is vllm.
std::string file_of(const std::string& source, const std::string& model) {
  return (source == "auto" ? model : source) + "/generation_config.json";
}

}  // namespace

Json GenerationConfig::values(const std::string& model) const {
  Json values = Json::object();
  if (source != "vllm") {
    const std::string path = file_of(source, model);
    const auto text = read_file_if_there(path, kMaxConfigBytes);
    require(source == "auto" || text.has_value(),
            "--generation-config is '{}'; it must be auto, vllm, or a folder with a "
            "generation_config.json",
            source);
    if (text) {
      const Json config = parse_json(*text, path);
      require(config.is_object(), "{}: not a JSON object", path);
      take_sampling(config, values);
      // Its values must be right by themselves, so that an error names the file.
      sampling_params_from_json(values, {.max_tokens = kNoMaxTokens}, path);
    }
  }
  if (overrides.empty()) return values;
  const Json config = parse_json(overrides, kOverrides);
  require(config.is_object(), "{} must be a JSON object, not {}", kOverrides, printable(config));
  check_overrides(config);
  Json replaced = Json::object();
  take_sampling(config, replaced);
  sampling_params_from_json(replaced, {.max_tokens = kNoMaxTokens}, kOverrides);
  take_sampling(config, values);
  return values;
}

SamplingParams GenerationConfig::apply(const std::string& model, const SamplingParams& params,
                                       std::span<const std::string> given) const {
  Json json = values(model);
  for (const std::string& name : given) json.erase(name);
  return sampling_params_from_json(json, params,
                                   source == "vllm" ? kOverrides : file_of(source, model));
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
