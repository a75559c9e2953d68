#include "nanovllm/params/generation_config.h"

#include <algorithm>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/params/sampling_json.h"

namespace nanovllm {

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

}  // namespace nanovllm
