#include "apps/cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/suggestion.h"

namespace nanovllm {

namespace {

constexpr size_t kWidth = 79;   // a terminal has 80 columns
constexpr size_t kColumn = 26;  // where the descriptions begin

void add_entry(std::string& out, const std::string& name, const std::string& description) {
  constexpr size_t kIndent = 2;
  out += std::string(kIndent, ' ') + name;
  size_t column = kIndent + name.size();
  if (column + 2 > kColumn) {
    out += '\n';
    column = 0;
  }
  out += std::string(kColumn - column, ' ');
  wrap(out, kColumn, kColumn, description);
}

void add_paragraphs(std::string& out, std::string_view text) {
  std::string paragraph;
  const auto end_paragraph = [&] {
    if (!paragraph.empty()) wrap(out, 0, 0, paragraph);
    paragraph.clear();
  };
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!line.empty() && line[0] != ' ') {
      paragraph += (paragraph.empty() ? "" : " ") + line;
    } else {
      end_paragraph();
      const size_t indent = std::min(line.find_first_not_of(' '), line.size());
      out += std::string(indent, ' ');
      wrap(out, indent, indent + 2, line.substr(indent));
    }
  }
  end_paragraph();
}

void add_option(std::string& out, const CLI::Option& option) {
  std::string name = fmt::format("{}", fmt::join(names_of(option), ", "));
  if (option.get_positional()) name = option.get_name();
  else if (takes_value(option)) name += " " + option.get_type_name();
  std::string description = option.get_description();
  if (!option.get_default_str().empty())
    description += fmt::format(" (default: {})", option.get_default_str());
  add_entry(out, name, description);
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return option->get_positional(); });
}

std::string full_name(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  return (parent == nullptr ? "" : full_name(*parent) + " ") + app.get_name();
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

std::string see_help(const CLI::App& app) {
  return fmt::format(" (see '{} --help')", full_name(app));
}

}  // namespace

void wrap(std::string& out, size_t column, size_t indent, std::string_view text) {
  bool at_start = true;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!at_start && column + 1 + word.size() > kWidth) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
      at_start = true;
    }
    if (!at_start) out += ' ';
    out += word;
    column += word.size() + (at_start ? 0 : 1);
    at_start = false;
  }
  out += '\n';
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string name,
                                     CLI::AppFormatMode /*mode*/) const {
  std::string out;
  add_paragraphs(out, app->get_description());
  const auto commands = commands_of(*app);
  out += "\nUsage: " + name;
  if (!commands.empty()) out += " COMMAND";
  for (const CLI::Option* option : positionals_of(*app))
    out += option->get_required() ? " " + option->get_name() : " [" + option->get_name() + "]";
  out += commands.empty() ? " [OPTIONS]\n" : " ...\n";
  if (const auto positionals = positionals_of(*app); !positionals.empty()) {
    out += "\nArguments:\n";
    for (const CLI::Option* option : positionals) add_option(out, *option);
  }
  if (!commands.empty()) {
    out += "\nCommands:\n";
    for (const CLI::App* command : commands)
      add_entry(out, command->get_name(), command->get_description());
  }
  const auto options = options_of(*app);
  for (const std::string& group : app->get_groups()) {
    std::string lines;
    for (const CLI::Option* option : options)
      if (option->get_group() == group) add_option(lines, *option);
    if (!lines.empty()) out += "\n" + group + ":\n" + lines;
  }
  out += "\n";
  add_paragraphs(out, app->get_footer());
  return out;
}

std::string help_of(const CLI::App& app) {
  return app.get_formatter()->make_help(&app, full_name(app), CLI::AppFormatMode::Normal);
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* option) {
    return option->nonpositional() && !option->get_group().empty();
  });
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

const CLI::App& find_command(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    const std::vector<std::string> names = command_names(*command);
    if (names.empty() || word.starts_with('-')) return *command;
    const std::string of = command == &app ? "" : " of " + command->get_name();
    require(std::ranges::count(names, word) > 0, "'{}' is not a command{}{}{}", word, of,
            did_you_mean(word, names), see_help(*command));
    command = command->get_subcommand(word);
  }
  return *command;
}

std::string explain(const CLI::App& app, const CLI::ParseError& error,
                    const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(*command))
    for (std::string& name : names_of(*option)) names.push_back(std::move(name));
  const std::string help = see_help(*command);
  const auto no_option = [&](const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("'{}' is not an option of {}{}{}", name, full_name(*command),
                       did_you_mean(name, names), help);
  };
  // The parser reads -temperature as -t emperature.
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (name.size() > 2 && name.starts_with('-') && std::ranges::count(names, "-" + name))
      return no_option(word);
  }
  for (const std::string& word : command->remaining())
    if (word.starts_with('-')) return no_option(word);
  if (!command->remaining().empty())
    return fmt::format("'{}' is one argument too many{}", command->remaining().front(), help);
  if (const std::vector<std::string> commands = command_names(*command); !commands.empty())
    return fmt::format("{} needs a command: {}{}", full_name(*command), fmt::join(commands, ", "),
                       help);
  std::string what = error.what();
  // "--prompt: 1 required TEXT missing"
  if (const size_t colon = what.find(": 1 required "); colon != std::string::npos)
    what = what.substr(0, colon) + " needs a value";
  // "Could not convert: --json = maybe". The values of all other options are checked before.
  if (constexpr std::string_view kFlag = "Could not convert: "; what.starts_with(kFlag)) {
    const size_t equals = what.find(" = ");
    what = fmt::format("{} takes no value; '{}' was given",
                       what.substr(kFlag.size(), equals - kFlag.size()), what.substr(equals + 3));
  }
  return what + help;
}

}  // namespace nanovllm
