#include "sampling_options.h"

#include <algorithm>
#include <optional>

#include "apps/cli/options.h"

namespace nanovllm {

void SamplingOptions::add_to(Command command) {
  add_generation_config(command, generation_config);
  add_sampling_options(command, params);
}

void SamplingOptions::find_given(Command command) {
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    if (field.option.empty()) return;
    const std::optional<Option> option = command.find_option(std::string(field.flag()));
    if (option && option->is_given()) given.emplace_back(field.name);
  });
}

SamplingParams SamplingOptions::for_chat(const std::string& model) const {
  SamplingParams merged = params;
  if (std::ranges::find(given, "max_tokens") == given.end()) merged.max_tokens = kNoMaxTokens;
  // The options are validated before they are merged, so that an error in an option does not name
  // the checkpoint's file.
  merged.validate();
  return generation_config.apply(model, merged, given);
}

}  // namespace nanovllm
