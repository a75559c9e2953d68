#include "nanovllm/model/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json_fields.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/ops/batch.h"

namespace nanovllm {

namespace {

// With sizes of at most 2^22 (of all experts together) and at most 2^13 layers, there are fewer
// than 2^61 parameters, so their number of bytes fits in 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 22;
constexpr int64_t kMaxLayers = 8192, kMaxExperts = 4096;
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

/// What is fixed for an architecture, and the defaults that its configuration class in transformers
/// has for absent keys.
struct Architecture {
  const char* name;
  bool qk_norm = false, qkv_bias = false;
  int64_t num_kv_heads = 0;  // 0: the number of query heads
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads
  int64_t max_position_embeddings = 32768;
  int64_t sliding_window = 0;  // 0: none, unless use_sliding_window is true
  bool has_experts = false;
};

constexpr std::array kArchitectures = {
    Architecture{.name = "Qwen3ForCausalLM", .qk_norm = true, .num_kv_heads = 32, .head_dim = 128},
    Architecture{
        .name = "Qwen3MoeForCausalLM", .qk_norm = true, .num_kv_heads = 4, .has_experts = true},
    Architecture{.name = "Qwen2ForCausalLM", .qkv_bias = true, .num_kv_heads = 32},
    Architecture{.name = "LlamaForCausalLM", .max_position_embeddings = 2048},
    Architecture{.name = "MistralForCausalLM",
                 .num_kv_heads = 8,
                 .max_position_embeddings = 131072,
                 .sliding_window = 4096},
};

const Architecture& find_architecture(const JsonFields& config) {
  const Json* names = config.find("architectures");
  require(names != nullptr && names->is_array() && names->size() == 1 && names->front().is_string(),
          "{}architectures must list one architecture", config.prefix());
  std::string supported;
  for (const Architecture& a : kArchitectures) {
    if (names->front() == a.name) return a;
    supported += fmt::format("{}{}", supported.empty() ? "" : ", ", a.name);
  }
  fail("{}architecture {} is not supported; supported are {}", config.prefix(),
       printable(names->front()), supported);
}

/// What options put in place of values of config.json.
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

/// Whether one of the keys is there that only a scaled embedding has.
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

// transformers 5 writes an object rope_parameters, which includes rope_theta. Older versions write
// rope_theta and an object rope_scaling, whose rope_type was called type at first.
RopeConfig parse_rope(const JsonFields& config, const std::optional<JsonFields>& given,
                      int64_t max_position_embeddings) {
  RopeConfig rope;
  rope.theta = config.positive("rope_theta", 10000);
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
  // Without a type the other keys have no effect, which nobody means who writes them.
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

/// Absent keys have the defaults of Qwen3-MoE.
void parse_experts(const JsonFields& config, ModelConfig& c) {
  // transformers 5 has the second name, for all architectures.
  const char* key = config.find("num_experts") != nullptr ? "num_experts" : "num_local_experts";
  c.num_experts = config.integer(key, kMaxExperts, 128);
  c.num_experts_per_tok = config.integer("num_experts_per_tok", c.num_experts, 8);
  c.moe_intermediate_size = config.integer("moe_intermediate_size", kMaxSize / c.num_experts, 768);
  c.norm_topk_prob = config.boolean("norm_topk_prob", false);
  const int64_t step = config.integer("decoder_sparse_step", kMaxInt, 1);
  for (int64_t layer = 1; layer <= c.num_layers; ++layer)
    c.expert_layers.push_back(layer % step == 0);
  if (const Json* dense = config.find("mlp_only_layers"))
    for (const Json& layer : *dense) {
      require(layer.is_number_integer() && layer >= 0 && layer < c.num_layers,
              "{}mlp_only_layers is {}; it must be a list of layers, 0 to {}", config.prefix(),
              printable(*dense), c.num_layers - 1);
      c.expert_layers[layer.get<size_t>()] = false;
    }
}

std::vector<int32_t> parse_eos(const JsonFields& fields) {
  const Json* value = fields.find("eos_token_id");
  if (value == nullptr) return {};
  const Json ids = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : ids)
    require(id.is_number_integer() && id >= 0 && id <= kMaxInt,
            "{}eos_token_id is {}; it must be a token id or a list of them", fields.prefix(),
            printable(*value));
  return ids.get<std::vector<int32_t>>();
}

void refuse_unsupported(const JsonFields& config, const Architecture& architecture,
                        int64_t max_position_embeddings) {
  if (config.text("hidden_act", "silu") != "silu") config.refuse("hidden_act", "it must be silu");
  for (const char* key : {"attention_bias", "mlp_bias"})
    if (config.boolean(key, false)) config.refuse(key, "it must be false");
  if (config.boolean("use_sliding_window", false))
    config.refuse("use_sliding_window", "every layer attends to the whole context");
  if (architecture.sliding_window != 0) {
    const int64_t window =
        config.contains("sliding_window") && !config.find("sliding_window")
            ? kMaxInt
            : config.integer("sliding_window", kMaxInt, architecture.sliding_window);
    require(window >= max_position_embeddings,
            "{}sliding_window is {}, which is not supported: it must be null or at least "
            "max_position_embeddings, {}",
            config.prefix(), window, max_position_embeddings);
  }
  if (const Json* types = config.find("layer_types"))
    for (const Json& type : *types)
      if (type != "full_attention")
        config.refuse("layer_types", "every layer must be full_attention");
}

DType parse_dtype(const JsonFields& config) {
  const char* key = config.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  try {
    return parse_float_dtype(config.text(key, "float32"));
  } catch (const UserError& e) {
    fail("{}{}: {}", config.prefix(), key, e.what());
  }
}

// Null if there is no such file.
Json read_config(const std::string& path) {
  const auto text = read_file_if_there(path, kMaxConfigBytes);
  return text ? parse_json(*text, path) : Json();
}

}  // namespace

ModelConfig ModelConfig::load(const std::string& folder, const EngineConfig& options) {
  require_model_folder(folder);
  const std::string config = folder + "/config.json";
  const std::string generation_config = folder + "/generation_config.json";
  require(path_exists(config),
          "{}: no config.json; a checkpoint folder in Hugging Face layout is needed", folder);
  const Json config_json = read_config(config);
  std::optional<JsonFields> quantization_file;
  if (!has_quantization(JsonFields(config_json, config + ": ")))
    quantization_file = read_quantization_file(folder);
  return parse(config_json, read_config(generation_config), folder, options, quantization_file);
}

ModelConfig ModelConfig::parse(const Json& config_json, const Json& generation_config_json,
                               const std::string& where, const EngineConfig& options,
                               const std::optional<JsonFields>& quantization_file) {
  const JsonFields config(config_json, where + "/config.json: ");
  const std::string& prefix = config.prefix();
  const Architecture& architecture = find_architecture(config);

  ModelConfig c;
  c.architecture = architecture.name;
  c.qk_norm = architecture.qk_norm;
  c.qkv_bias = architecture.qkv_bias;
  c.vocab_size = config.integer("vocab_size", kMaxSize);
  c.hidden_size = config.integer("hidden_size", kMaxSize);
  c.intermediate_size = config.integer("intermediate_size", kMaxSize);
  c.num_layers = config.integer("num_hidden_layers", kMaxLayers);
  if (architecture.has_experts) parse_experts(config, c);
  c.num_heads = config.integer("num_attention_heads", kMaxSize);
  // An explicit null differs from an absent key, for which the architecture may have a default.
  const auto absent = [&](const char* key, int64_t architectures, int64_t derived) {
    return architectures > 0 && !config.contains(key) ? architectures : derived;
  };
  c.num_kv_heads =
      config.integer("num_key_value_heads", kMaxSize,
                     absent("num_key_value_heads", architecture.num_kv_heads, c.num_heads));
  require(c.num_heads % c.num_kv_heads == 0,
          "{}num_attention_heads is {}; it must be a multiple of num_key_value_heads, {}", prefix,
          c.num_heads, c.num_kv_heads);
  const int64_t absent_head_dim = absent("head_dim", architecture.head_dim, 0);
  require(absent_head_dim > 0 || config.find("head_dim") || c.hidden_size % c.num_heads == 0,
          "{}hidden_size is {}; without head_dim it must be a multiple of num_attention_heads, {}",
          prefix, c.hidden_size, c.num_heads);
  c.head_dim = config.integer("head_dim", kMaxSize,
                              absent_head_dim > 0 ? absent_head_dim : c.hidden_size / c.num_heads);
  require(c.head_dim % 8 == 0, "{}head_dim is {}; it must be a multiple of 8", prefix, c.head_dim);
  require(c.q_size() <= kMaxSize, "{}num_attention_heads * head_dim is {}; it must be at most {}",
          prefix, c.q_size(), kMaxSize);
  const Overrides overrides = overrides_of(options);
  c.max_position_embeddings =
      config.integer("max_position_embeddings", kMaxInt, architecture.max_position_embeddings);
  if (overrides.max_position_embeddings)
    c.max_position_embeddings = *overrides.max_position_embeddings;
  c.rms_norm_eps = static_cast<float>(config.positive("rms_norm_eps", 1e-6));
  c.initializer_range = static_cast<float>(config.positive("initializer_range", 0.02));
  c.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  c.dtype = parse_dtype(config);
  // The GPU's kernels for the embedding and for drawing from the logits read floats.
  c.quantization =
      parse_quantization(config, options.quantization, options.device == "cpu", quantization_file);
  c.rope = parse_rope(config, overrides.rope, c.max_position_embeddings);
  // Published checkpoints leave max_position_embeddings as it is when yarn is added.
  if (c.rope.scaling == RopeConfig::Scaling::kYarn)
    c.max_position_embeddings =
        std::max(c.max_position_embeddings,
                 static_cast<int64_t>(std::min(
                     c.rope.factor * c.rope.original_max_position_embeddings, double{kMaxInt})));
  refuse_unsupported(config, architecture, c.max_position_embeddings);
  const auto add_end_tokens = [&](const JsonFields& fields) {
    for (const int32_t id : parse_eos(fields))
      if (std::ranges::find(c.eos_token_ids, id) == c.eos_token_ids.end())
        c.eos_token_ids.push_back(id);
  };
  if (!generation_config_json.is_null())
    add_end_tokens(JsonFields(generation_config_json, where + "/generation_config.json: "));
  add_end_tokens(config);
  return c;
}

int64_t ModelConfig::num_parameters() const {
  const int64_t attention = (qkv_size() + q_size()) * hidden_size;
  const int64_t mlp = 3 * intermediate_size * hidden_size;
  const int64_t experts = num_experts * (3 * moe_intermediate_size + 1) * hidden_size;
  const int64_t num_sparse = std::ranges::count(expert_layers, true);
  const int64_t vectors =
      2 * hidden_size + (qk_norm ? 2 * head_dim : 0) + (qkv_bias ? qkv_size() : 0);
  const int64_t embeddings = (tie_word_embeddings ? 1 : 2) * vocab_size * hidden_size;
  return embeddings + num_layers * (attention + vectors) + num_sparse * experts +
         (num_layers - num_sparse) * mlp + hidden_size;
}

size_t ModelConfig::weight_bytes(DType dtype, bool on_gpu) const {
  const auto size = static_cast<double>(dtype_size(dtype));
  auto bytes = size * static_cast<double>(num_parameters());
  const bool keeps =
      quantization && dtype != DType::kF32 && !(on_gpu && quantization->column_unit == 0);
  for (int64_t layer = 0; keeps && layer < num_layers; ++layer) {
    const auto count = [&](const char* module, int64_t rows) {
      if (is_quantized(quantization, fmt::format("model.layers.{}.{}", layer, module)))
        bytes -= (size - quantization->bytes_per_value) * static_cast<double>(rows * hidden_size);
    };
    for (const char* module : {"self_attn.q_proj", "self_attn.o_proj"}) count(module, q_size());
    for (const char* module : {"self_attn.k_proj", "self_attn.v_proj"}) count(module, kv_size());
    for (const char* module : {"gate_proj", "up_proj", "down_proj"}) {
      if (!has_experts(layer)) count((std::string("mlp.") + module).c_str(), intermediate_size);
      else
        count((std::string("mlp.experts.0.") + module).c_str(),
              num_experts * moe_intermediate_size);
    }
  }
  // With many tokens a GPU makes floats of one weight at a time.
  const bool has_sparse = std::ranges::count(expert_layers, true) > 0;
  const int64_t rows =
      std::max(num_experts * moe_intermediate_size * (has_sparse ? 1 : 0), intermediate_size);
  if (keeps && on_gpu) bytes += size * static_cast<double>(2 * rows * hidden_size);
  return static_cast<size_t>(bytes);
}

size_t ModelConfig::kv_bytes_per_token(DType dtype) const {
  return static_cast<size_t>(2 * num_layers * num_kv_heads) * kv_key_bytes(dtype, head_dim);
}

}  // namespace nanovllm
