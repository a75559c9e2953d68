#include "nanovllm/families/load.h"

#include <algorithm>
#include <array>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/families/family.h"

namespace nanovllm {

namespace {

/// A name in `architectures` of config.json, and the function that reads such models.
struct Family {
  const char* architecture;
  ModelSpec (*read)(const ModelFiles&);
};

constexpr std::array kFamilies = {
    Family{"Qwen3ForCausalLM", read_qwen3},     Family{"Qwen3MoeForCausalLM", read_qwen3_moe},
    Family{"Qwen2ForCausalLM", read_qwen2},     Family{"LlamaForCausalLM", read_llama},
    Family{"MistralForCausalLM", read_mistral}, Family{"SmolLM3ForCausalLM", read_smollm3},
    Family{"Olmo2ForCausalLM", read_olmo2},
};

const Family& find_family(const JsonFields& config) {
  const Json* names = config.find("architectures");
  require(names != nullptr && names->is_array() && names->size() == 1 && names->front().is_string(),
          "{}architectures must list one architecture", config.prefix());
  std::string supported;
  for (const Family& family : kFamilies) {
    if (names->front() == family.architecture) return family;
    supported += fmt::format("{}{}", supported.empty() ? "" : ", ", family.architecture);
  }
  fail("{}architecture {} is not supported; supported are {}", config.prefix(),
       printable(names->front()), supported);
}

void add_end_tokens(const JsonFields& fields, std::vector<int32_t>& end_tokens) {
  const Json* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  const Json ids = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : ids) {
    require(id.is_number_integer() && id >= 0 && id <= kMaxInt,
            "{}eos_token_id is {}; it must be a token id or a list of them", fields.prefix(),
            printable(*value));
    if (std::ranges::find(end_tokens, id.get<int32_t>()) == end_tokens.end())
      end_tokens.push_back(id.get<int32_t>());
  }
}

/// Null if there is no such file.
Json read_config(const std::string& path) {
  const auto text = read_file_if_there(path, kMaxConfigBytes);
  return text ? parse_json(*text, path) : Json();
}

}  // namespace

ModelSpec load_model_spec(const std::string& folder, const EngineConfig& options) {
  require_model_folder(folder);
  const std::string config = folder + "/config.json";
  require(path_exists(config),
          "{}: no config.json; a checkpoint folder in Hugging Face layout is needed", folder);
  const Json config_json = read_config(config);
  std::optional<JsonFields> quantization;
  if (!has_quantization(JsonFields(config_json, config + ": ")))
    quantization = read_quantization_file(folder);
  return parse_model_spec(config_json, read_config(folder + "/generation_config.json"), folder,
                          options, quantization);
}

ModelSpec parse_model_spec(const Json& config_json, const Json& generation_config,
                           const std::string& where, const EngineConfig& options,
                           const std::optional<JsonFields>& quantization) {
  const JsonFields config(config_json, where + "/config.json: ");
  const Family& family = find_family(config);
  ModelSpec spec = family.read({config, options, quantization});
  spec.architecture = family.architecture;
  if (!generation_config.is_null())
    add_end_tokens(JsonFields(generation_config, where + "/generation_config.json: "),
                   spec.eos_token_ids);
  add_end_tokens(config, spec.eos_token_ids);
  return spec;
}

}  // namespace nanovllm
