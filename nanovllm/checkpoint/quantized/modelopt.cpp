#include "nanovllm/base/check.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

// quant_method "modelopt", as NVIDIA's Model Optimizer exports it: in config.json, or under the key
// "quantization" in hf_quant_config.json. Its FP8 has the form that vLLM writes, with one scale for
// each matrix. Scales of activations and of a cache are not needed, because both get their scales
// at run time.
Quantization modelopt(const JsonFields& config) {
  const JsonFields fields =
      config.find("quantization") != nullptr ? config.object("quantization") : config;
  require(fields.find("quant_algo") != nullptr, "{}quant_algo is missing", fields.prefix());
  const std::string algorithm = fields.text("quant_algo", "");
  if (algorithm != "FP8" && algorithm != "fp8") fields.refuse("quant_algo", "it must be FP8");
  Quantization made = fp8(JsonFields(Json::object(), config.prefix()));
  made.description = "modelopt, " + made.description;
  for (const char* key : {"exclude_modules", "ignore"})
    for (std::string name : read_names(fields, key)) {
      std::erase(name, '*');  // a wildcard at an end
      made.left_out.push_back(std::move(name));
    }
  return made;
}

}  // namespace nanovllm
