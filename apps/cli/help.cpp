#include "apps/cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

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

void add_option(std::string& out, Option option) {
  std::string name = fmt::format("{}", fmt::join(option.names(), ", "));
  if (option.is_positional()) name = option.name();
  else if (option.may_take_value()) name += " " + option.type_name();
  std::string description = option.description();
  if (!option.default_text().empty())
    description += fmt::format(" (default: {})", option.default_text());
  add_entry(out, name, description);
}

std::vector<Option> positionals_of(Command command) {
  std::vector<Option> positionals = command.options();
  std::erase_if(positionals, [](Option option) { return !option.is_positional(); });
  return positionals;
}

std::string full_name(Command command) {
  const std::optional<Command> parent = command.parent();
  return (parent ? full_name(*parent) + " " : "") + command.name();
}

std::vector<std::string> command_names(Command command) {
  std::vector<std::string> names;
  for (const Command sub : command.commands()) names.push_back(sub.name());
  return names;
}

std::string see_help(Command command) {
  return fmt::format(" (see '{} --help')", full_name(command));
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

std::string help_of(Command command) {
  std::string out;
  add_paragraphs(out, command.description());
  const std::vector<Command> commands = command.commands();
  const std::vector<Option> positionals = positionals_of(command), options = options_of(command);
  out += "\nUsage: " + full_name(command);
  if (!commands.empty()) out += " COMMAND";
  for (const Option option : positionals)
    out += option.is_required() ? " " + option.name() : " [" + option.name() + "]";
  out += commands.empty() ? " [OPTIONS]\n" : " ...\n";
  if (!positionals.empty()) out += "\nArguments:\n";
  for (const Option option : positionals) add_option(out, option);
  if (!commands.empty()) out += "\nCommands:\n";
  for (const Command sub : commands) add_entry(out, sub.name(), sub.description());
  std::vector<std::string> groups;
  for (const Option option : options)
    if (std::ranges::count(groups, option.group()) == 0) groups.push_back(option.group());
  for (const std::string& group : groups) {
    out += "\n" + group + ":\n";
    for (const Option option : options)
      if (option.group() == group) add_option(out, option);
  }
  out += "\n";
  add_paragraphs(out, command.footer());
  return out;
}

std::vector<Option> options_of(Command command) {
  std::vector<Option> options = command.options();
  std::erase_if(options,
                [](Option option) { return option.names().empty() || option.group().empty(); });
  return options;
}

Command find_command(Command program, std::span<const std::string> words) {
  Command command = program;
  for (const std::string& word : words) {
    const std::vector<Command> commands = command.commands();
    if (commands.empty() || word.starts_with('-')) return command;
    const std::string of = command.parent() ? " of " + command.name() : "";
    const auto found = std::ranges::find(commands, word, &Command::name);
    require(found != commands.end(), "'{}' is not a command{}{}{}", word, of,
            did_you_mean(word, command_names(command)), see_help(command));
    command = *found;
  }
  return command;
}

std::string explain(Command program, const ParseError& error, std::span<const std::string> words) {
  const Command command = program.chosen();
  std::vector<std::string> names;
  for (const Option option : options_of(command))
    for (std::string& name : option.names()) names.push_back(std::move(name));
  const std::string help = see_help(command);
  const auto no_option = [&](const std::string& word) {
    const std::string name = word.substr(0, word.find('='));
    return fmt::format("'{}' is not an option of {}{}{}", name, full_name(command),
                       did_you_mean(name, names), help);
  };
  // The parser would read -temperature as -t emperature.
  for (const std::string& word : words) {
    const std::string name = word.substr(0, word.find('='));
    if (name.size() > 2 && name.starts_with('-') && std::ranges::count(names, "-" + name))
      return no_option(word);
  }
  const std::vector<std::string> unknown = command.unknown_words();
  for (const std::string& word : unknown)
    if (word.starts_with('-')) return no_option(word);
  if (!unknown.empty())
    return fmt::format("'{}' is one argument too many{}", unknown.front(), help);
  if (const std::vector<std::string> commands = command_names(command); !commands.empty())
    return fmt::format("{} needs a command: {}{}", full_name(command), fmt::join(commands, ", "),
                       help);
  std::string what = error.what();
  // This handles messages such as "--prompt: 1 required TEXT missing".
  if (const size_t colon = what.find(": 1 required "); colon != std::string::npos)
    // The parser does not name options that are not in the help; the value of the last word is
    // missing.
    what = (colon == 0 ? words.back() : what.substr(0, colon)) + " needs a value";
  // "Could not convert: --json = maybe". The values of all other options are checked before.
  if (constexpr std::string_view kFlag = "Could not convert: "; what.starts_with(kFlag)) {
    const size_t equals = what.find(" = ");
    what = fmt::format("{} takes no value; '{}' was given",
                       what.substr(kFlag.size(), equals - kFlag.size()), what.substr(equals + 3));
  }
  return what + help;
}

}  // namespace nanovllm
