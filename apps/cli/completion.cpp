#include "apps/cli/completion.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

#include "apps/cli/help.h"
#include "nanovllm/hub/cache.h"
#include "nanovllm/hub/settings.h"

namespace nanovllm {

namespace {

/// The place of the last word: the command that it belongs to, and the option whose value it is.
struct Place {
  Command command;
  std::optional<Option> option = {};  // none if the word is not the value of an option
  size_t num_positionals = 0;         // positional arguments before it
};

std::optional<Option> find_option(Command command, const std::string& word) {
  for (const Option option : options_of(command))
    for (const std::string& name : option.names())
      if (name == word) return option;
  return std::nullopt;
}

std::optional<Command> find_subcommand(Command command, const std::string& word) {
  for (const Command sub : command.commands())
    if (sub.name() == word) return sub;
  return std::nullopt;
}

Place find_place(Command program, std::span<const std::string> words) {
  Place place{.command = program};
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "=") continue;  // bash makes three words of --option=value
    if (place.option) {
      place.option.reset();
    } else if (word.starts_with('-')) {
      place.option = find_option(place.command, word);
      if (place.option && !place.option->may_take_value()) place.option.reset();
    } else if (const auto sub = find_subcommand(place.command, word)) {
      place.command = *sub;
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
  void add_commands(Command command) {
    for (const Command sub : command.commands()) add(sub.name(), sub.description());
  }
  /// The values of an option or positional argument; each candidate begins with `prefix`.
  void add_values(Option option, const std::string& prefix = {}) {
    const std::string type = option.type_name();
    if (option.name() == "MODEL" || option.name() == "ID")
      for (const std::string& id : hub::list_ids(hub::Settings::from_environment().cache_folder))
        add(id);
    for (const std::string& choice : option.choices()) add(prefix + choice);
    if (type.starts_with("FOLDER")) lines_ += "<folders>\n";
    else if (type.starts_with("FILE")) lines_ += "<files>\n";
  }
  const std::string& lines() const { return lines_; }

 private:
  std::string typed_;
  std::string lines_;
};

}  // namespace

std::string complete(Command program, std::span<const std::string> words) {
  // After "help" come the same commands, but nothing else.
  const bool is_help = words.size() > 1 && words.front() == "help";
  const Place place = find_place(program, words.subspan(is_help ? 1 : 0));
  const std::string last = words.empty() || words.back() == "=" ? "" : words.back();
  Candidates candidates(last);
  const size_t equals = last.find('=');
  if (is_help) {
    candidates.add_commands(place.command);
  } else if (place.option) {
    candidates.add_values(*place.option);
  } else if (last.starts_with("--") && equals != std::string::npos) {
    if (const auto option = find_option(place.command, last.substr(0, equals)))
      candidates.add_values(*option, last.substr(0, equals + 1));
  } else if (last.starts_with('-')) {
    for (const Option option : options_of(place.command))
      for (const std::string& name : option.names()) candidates.add(name, option.description());
  } else if (!place.command.commands().empty()) {
    candidates.add_commands(place.command);
  } else {
    size_t index = 0;
    for (const Option option : place.command.options())
      if (option.is_positional() && index++ == place.num_positionals) candidates.add_values(option);
  }
  return candidates.lines();
}

}  // namespace nanovllm
