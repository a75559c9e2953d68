#include "apps/cli/completion.h"

#include <fmt/format.h>

#include <string_view>

#include "apps/cli/help.h"
#include "apps/cli/options.h"
#include "nanovllm/hub/cache.h"
#include "nanovllm/hub/settings.h"

namespace nanovllm {

namespace {

/// Where the last word is: which command it belongs to, and which option's value it is.
struct Place {
  const CLI::App* command = nullptr;
  const CLI::Option* option = nullptr;  // null if the word is not the value of an option
  size_t num_positionals = 0;           // that stand before it
};

const CLI::Option* find_option(const CLI::App& command, const std::string& word) {
  for (const CLI::Option* option : options_of(command))
    for (const std::string& name : names_of(*option))
      if (name == word) return option;
  return nullptr;
}

const CLI::App* find_subcommand(const CLI::App& command, const std::string& word) {
  for (const CLI::App* sub : commands_of(command))
    if (sub->get_name() == word) return sub;
  return nullptr;
}

Place find_place(const CLI::App& app, const std::vector<std::string>& words) {
  Place place{.command = &app};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "=") continue;  // bash makes three words of --option=value
    if (place.option != nullptr) {
      place.option = nullptr;
    } else if (word.starts_with('-')) {
      place.option = find_option(*place.command, word);
      if (place.option != nullptr && !takes_value(*place.option)) place.option = nullptr;
    } else if (const CLI::App* sub = find_subcommand(*place.command, word)) {
      place.command = sub;
    } else {
      ++place.num_positionals;
    }
  }
  return place;
}

class Candidates {
 public:
  explicit Candidates(std::string typed) : typed_(std::move(typed)) {}

  void add(const std::string& candidate, std::string_view description = {}) {
    if (candidate.starts_with(typed_)) lines_ += fmt::format("{}\t{}\n", candidate, description);
  }
  /// The values of an option or positional argument; each candidate begins with `prefix`.
  void add_values(const CLI::Option& option, const std::string& prefix = {}) {
    const std::string type = option.get_type_name();
    if (option.get_name() == "MODEL" || option.get_name() == "ID")
      for (const std::string& id : hub::list_ids(hub::Settings::from_environment().cache_folder))
        add(id);
    for (const std::string& choice : choices_of(option)) add(prefix + choice);
    if (type.starts_with("FOLDER")) lines_ += "<folders>\n";
    else if (type.starts_with("FILE")) lines_ += "<files>\n";
  }
  const std::string& lines() const { return lines_; }

 private:
  std::string typed_;
  std::string lines_;
};

}  // namespace

std::string complete(const CLI::App& app, const std::vector<std::string>& words) {
  // After "help" come the same commands, but nothing else.
  const bool is_help = words.size() > 1 && words.front() == "help";
  const Place place = find_place(app, {words.begin() + (is_help ? 1 : 0), words.end()});
  const std::string last = words.empty() || words.back() == "=" ? "" : words.back();
  Candidates candidates(last);
  const size_t equals = last.find('=');
  if (is_help) {
    for (const CLI::App* command : commands_of(*place.command))
      candidates.add(command->get_name(), command->get_description());
  } else if (place.option != nullptr) {
    candidates.add_values(*place.option);
  } else if (last.starts_with("--") && equals != std::string::npos) {
    if (const CLI::Option* option = find_option(*place.command, last.substr(0, equals)))
      candidates.add_values(*option, last.substr(0, equals + 1));
  } else if (last.starts_with('-')) {
    for (const CLI::Option* option : options_of(*place.command))
      for (const std::string& name : names_of(*option))
        candidates.add(name, option->get_description());
  } else if (const auto commands = commands_of(*place.command); !commands.empty()) {
    for (const CLI::App* command : commands)
      candidates.add(command->get_name(), command->get_description());
  } else {
    size_t index = 0;
    for (const CLI::Option* option : place.command->get_options())
      if (option->get_positional() && index++ == place.num_positionals)
        candidates.add_values(*option);
  }
  return candidates.lines();
}

}  // namespace nanovllm
