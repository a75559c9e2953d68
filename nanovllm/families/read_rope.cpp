#include <algorithm>
#include <array>
#include <cmath>

#include "nanovllm/base/check.h"
#include "nanovllm/families/family.h"

namespace nanovllm {

namespace {

/// The values with which options replace those of config.json.
struct Overrides {
  std::optional<JsonFields> rope;
  std::optional<int64_t> max_position_embeddings;
};

Overrides overrides_of(const EngineConfig& options) {
  const auto read = [](const std::string& text, const char* name) {
    return JsonFields(parse_json(text, name), std::string(name) + ": ");
  };
  Overrides result;
  if (!options.hf_overrides.empty()) {
    const JsonFields given = read(options.hf_overrides, "--hf-overrides");
    for (const std::string& key : given.keys()) {
      if (key == "max_position_embeddings") {
        result.max_position_embeddings = given.integer(key.c_str(), kMaxInt);
        continue;
      }
      require(key == "rope_scaling" || key == "rope_parameters",
              "{}{} cannot be overridden, only rope_parameters (or rope_scaling) and "
              "max_position_embeddings",
              given.prefix(), printable(key));
      result.rope = given.object(key.c_str());
    }
  }
  if (!options.rope_scaling.empty()) result.rope = read(options.rope_scaling, "--rope-scaling");
  return result;
}

/// Whether `rope` has a key that only a scaled embedding has.
bool has_scaling_key(const JsonFields& rope) {
  constexpr std::array kKeys = {"factor",           "original_max_position_embeddings",
                                "low_freq_factor",  "high_freq_factor",
                                "beta_fast",        "beta_slow",
                                "attention_factor", "mscale",
                                "mscale_all_dim",   "truncate",
                                "short_factor",     "long_factor"};
  return std::ranges::any_of(kKeys, [&](const char* key) { return rope.find(key) != nullptr; });
}

/// Source: Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023;
/// the keys and their defaults are those of transformers.
void parse_yarn(const JsonFields& scaling, double max_position_embeddings, RopeConfig& rope) {
  rope.original_max_position_embeddings =
      scaling.positive("original_max_position_embeddings", max_position_embeddings);
  rope.beta_fast = scaling.positive("beta_fast", rope.beta_fast);
  rope.beta_slow = scaling.positive("beta_slow", rope.beta_slow);
  rope.truncate = scaling.boolean("truncate", rope.truncate);
  require(rope.theta > 1, "{}rope_theta is {}; with yarn it must be above 1", scaling.prefix(),
          rope.theta);
  const auto mscale = [&](double scale) {
    return rope.factor <= 1 ? 1 : 0.1 * scale * std::log(rope.factor) + 1;
  };
  const bool has_mscales = scaling.find("mscale") != nullptr && scaling.find("mscale_all_dim");
  rope.attention_factor = scaling.positive(
      "attention_factor",
      has_mscales ? mscale(scaling.positive("mscale")) / mscale(scaling.positive("mscale_all_dim"))
                  : mscale(1));
}

}  // namespace

std::optional<int64_t> overridden_length(const EngineConfig& options) {
  return overrides_of(options).max_position_embeddings;
}

// transformers 5 writes an object rope_parameters, which includes rope_theta. Older versions write
// rope_theta and an object rope_scaling, whose rope_type was called type at first.
RopeConfig read_rope(const ModelFiles& files, double default_theta,
                     int64_t max_position_embeddings) {
  const JsonFields& config = files.config;
  const std::optional<JsonFields> given = overrides_of(files.options).rope;
  RopeConfig rope;
  rope.theta = config.positive("rope_theta", default_theta);
  const auto refuse_partial = [](const JsonFields& fields) {
    if (fields.positive("partial_rotary_factor", 1) != 1)
      fields.refuse("partial_rotary_factor", "it must be 1");
  };
  refuse_partial(config);
  std::optional<JsonFields> scaling;
  for (const char* key : {"rope_parameters", "rope_scaling"})
    if (config.find(key) != nullptr) scaling = config.object(key);
  if (scaling) rope.theta = scaling->positive("rope_theta", rope.theta);
  if (given) scaling = given;
  if (!scaling) return rope;

  rope.theta = scaling->positive("rope_theta", rope.theta);
  refuse_partial(*scaling);
  for (const char* layers : {"full_attention", "sliding_attention"})
    if (scaling->find(layers) != nullptr)
      scaling->refuse(layers, "all layers must have the same rotary embedding");
  const char* type_key = scaling->find("rope_type") != nullptr ? "rope_type" : "type";
  // Without a type the other keys would silently have no effect.
  require(scaling->find(type_key) != nullptr || !(given || has_scaling_key(*scaling)),
          "{}rope_type is missing; it must be default, linear, llama3 or yarn", scaling->prefix());
  const std::string type = scaling->text(type_key, "default");
  if (type == "default") return rope;
  constexpr std::array kTypes = {"linear", "llama3", "yarn"};  // in the order of Scaling
  const auto at = std::ranges::find(kTypes, type);
  if (at == kTypes.end())
    scaling->refuse(type_key, "supported are default, linear, llama3 and yarn");
  rope.scaling = static_cast<RopeConfig::Scaling>(at - kTypes.begin() + 1);
  rope.factor = scaling->positive("factor");
  if (type == "yarn") parse_yarn(*scaling, static_cast<double>(max_position_embeddings), rope);
  if (type == "llama3") {
    rope.low_freq_factor = scaling->positive("low_freq_factor");
    rope.high_freq_factor = scaling->positive("high_freq_factor");
    rope.original_max_position_embeddings = scaling->positive("original_max_position_embeddings");
    require(rope.high_freq_factor > rope.low_freq_factor,
            "{}high_freq_factor is {}; it must be above low_freq_factor, {}", scaling->prefix(),
            rope.high_freq_factor, rope.low_freq_factor);
  }
  return rope;
}

}  // namespace nanovllm
