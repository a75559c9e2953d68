#include "apps/cli/vllm_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/params/unsupported.h"

namespace nanovllm {

namespace {

constexpr const char* kHidden = "";  // the group of options that no help shows
constexpr const char* kDescription = "an option of vLLM";

/// The names by which the user calls the model. The folder of an id is found later.
std::vector<std::string> names_of_model(Command command) {
  const std::optional<Option> model = command.find_option("MODEL");
  return model ? model->values() : std::vector<std::string>();
}

Option add(Command command, const std::string& name, const UnsupportedName& option) {
  const auto check = [command, &option](std::string_view value, const std::string& shown) {
    option.check(value, names_of_model(command), shown);
  };
  if (option.takes == UnsupportedName::Takes::kNothing) {
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
  return option.takes == UnsupportedName::Takes::kValues ? added.take_several() : added;
}

}  // namespace

void add_vllm_options(Command command) {
  using Place = UnsupportedName::Place;
  const std::optional<Command> parent = command.parent();
  const bool is_bench = parent && parent->name() == "bench";
  uint32_t places = 0;
  if (command.has_option("--max-num-seqs"))
    places |= is_bench ? Place::kEngineOption | Place::kBenchOption : Place::kEngineOption;
  if (command.name() == "serve")
    places |= is_bench ? Place::kBenchServeOption : Place::kServeOption;
  for (const UnsupportedName& option : unsupported_names()) {
    const std::string name = "--" + std::string(option.name);
    if ((option.places & places) != 0 && !command.has_option(name))
      add(command, name, option).group(kHidden);
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
