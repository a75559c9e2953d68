#include "apps/cli/vllm_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/params/vllm_options.h"

namespace nanovllm {

namespace {

constexpr const char* kHidden = "";  // the group of options that no help shows
constexpr const char* kDescription = "an option of vLLM";

/// What the user calls the model. The folder of an id is found later.
std::vector<std::string> names_of_model(Command command) {
  const std::optional<Option> model = command.find_option("MODEL");
  return model ? model->values() : std::vector<std::string>();
}

Option add(Command command, const std::string& name, const VllmOption& option) {
  const auto check = [command, &option](std::string_view value, const std::string& shown) {
    option.check(value, names_of_model(command), shown);
  };
  if (option.takes == VllmOption::Takes::kNothing) {
    const auto set = [=](int64_t count) {
      if (count > 0) check("true", name);
      else check("false", "--no-" + name.substr(2));
    };
    return command.add_flag(name, set, kDescription);
  }
  const auto set = [=](const std::vector<std::string>& values) {
    for (const std::string& value : values) check(value, fmt::format("{} {}", name, value));
    return std::string();
  };
  Option added = command.add_function(name, set, kDescription);
  return option.takes == VllmOption::Takes::kValues ? added.take_several() : added;
}

}  // namespace

void add_vllm_options(Command command) {
  const bool has_engine = command.has_option("--max-num-seqs");
  const std::optional<Command> parent = command.parent();
  const bool is_bench = parent && parent->name() == "bench";
  const auto belongs = [&](VllmOption::Of of) {
    const bool is_serve = command.name() == "serve";
    if (of == VllmOption::Of::kServer) return is_serve && !is_bench;
    if (of == VllmOption::Of::kBenchServe) return is_serve && is_bench;
    return has_engine && (of == VllmOption::Of::kEngine || is_bench);
  };
  for (const VllmOption& option : vllm_options()) {
    const std::string name = "--" + std::string(option.name);
    if (belongs(option.of) && !command.has_option(name)) add(command, name, option).group(kHidden);
  }
}

std::string note_without_effect(Command command) {
  std::vector<std::string> names;
  for (const Option option : command.given_options()) {
    if (option.description() != kDescription) continue;
    std::string name = option.names().front();
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  if (names.empty()) return {};
  return fmt::format("these options of vLLM have no effect here: {}", fmt::join(names, ", "));
}

}  // namespace nanovllm
