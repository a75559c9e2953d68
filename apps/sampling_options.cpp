#include "sampling_options.h"

#include <algorithm>

#include "apps/cli/options.h"
#include "nanovllm/base/sampling_json.h"

namespace nanovllm {

void SamplingOptions::add_to(CLI::App& app) {
  add_choice(app, "--generation-config", generation_config, "auto|vllm",
             "auto: use the checkpoint's sampling values; vllm: ignore them");
  add_sampling_options(app, params);
}

void SamplingOptions::find_given(const CLI::App& app) {
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    if (field.option.empty()) return;
    if (const CLI::Option* option = app.get_option_no_throw(std::string(field.flag()));
        option != nullptr && option->count() > 0)
      given.emplace_back(field.name);
  });
}

SamplingParams SamplingOptions::for_chat(const std::string& model) const {
  SamplingParams merged = params;
  if (std::ranges::find(given, "max_tokens") == given.end()) merged.max_tokens = kNoMaxTokens;
  // Validated before they are merged, so that an option's error does not name the checkpoint's
  // file.
  merged.validate();
  if (generation_config == "vllm") return merged;
  Json defaults = sampling_defaults(model);
  for (const std::string& name : given) defaults.erase(name);
  return sampling_params_from_json(defaults, merged, model + "/generation_config.json");
}

}  // namespace nanovllm
