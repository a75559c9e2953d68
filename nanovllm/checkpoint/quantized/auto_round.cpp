#include <algorithm>
#include <array>

#include "nanovllm/base/check.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

namespace {

/// The modules that extra_config leaves unquantized. Refuses an extra_config that quantizes some
/// modules in another way than the rest.
std::vector<std::string> read_left_out(const JsonFields& config) {
  std::vector<std::string> left_out;
  if (config.find("extra_config") == nullptr) return left_out;
  const JsonFields modules = config.object("extra_config");
  require(modules.keys().size() <= kMostNames, "{}extra_config has more than {} names",
          config.prefix(), kMostNames);
  constexpr int64_t kFloatBits = 16;
  for (const std::string& name : modules.keys()) {
    const JsonFields own = modules.object(name.c_str());
    if (own.integer("bits", 64, config.integer("bits", 64)) >= kFloatBits) {
      left_out.push_back(name);
      continue;
    }
    for (const char* key : {"bits", "group_size", "data_type"}) {
      const Json *value = own.find(key), *of_all = config.find(key);
      if (value != nullptr && of_all != nullptr && *value != *of_all)
        modules.refuse(name.c_str(), "all modules must be quantized alike");
    }
  }
  return left_out;
}

}  // namespace

// Reads quant_method "auto-round" (Cheng et al., "Optimize Weight Rounding via Signed Gradient
// Descent for the Quantization of LLMs", 2023), as Intel's AutoRound exports it: the tensors are
// those of GPTQ or AWQ.
Quantization auto_round(const JsonFields& config) {
  constexpr std::array<std::string_view, 2> kGptq = {"auto_round:auto_gptq", "auto_gptq"};
  constexpr std::array<std::string_view, 2> kAwq = {"auto_round:auto_awq", "auto_awq"};
  const std::string format = config.text("packing_format", kGptq[0].data());
  const bool is_awq = std::ranges::find(kAwq, format) != kAwq.end();
  if (!is_awq && std::ranges::find(kGptq, format) == kGptq.end())
    config.refuse("packing_format",
                  "it must be auto_round:auto_gptq, auto_round:auto_awq, auto_gptq or auto_awq");
  if (config.text("data_type", "int") != "int") config.refuse("data_type", "it must be int");
  if (config.integer("act_bits", 64, 16) < 16)
    config.refuse("act_bits", "activations must not be quantized");
  Json own = Json::object();
  for (const char* key : {"bits", "group_size"})
    if (const Json* value = config.find(key)) own[key] = *value;
  const JsonFields fields(own, config.prefix());
  Quantization made = is_awq ? awq(fields) : gptq(fields);
  made.description = "auto-round, " + made.description;
  made.left_out = read_left_out(config);
  return made;
}

}  // namespace nanovllm
