#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// Writes the help of a command in 80 columns. In a description or footer, lines that are not
/// indented form a paragraph, up to an empty or indented line; its lines are broken anew. Indented
/// lines, such as examples, are kept.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override;
};

/// Appends the words of `text` to `out`, whose last line has `column` characters, and breaks lines
/// so that they fit in 80 columns; new lines begin with `indent` spaces.
void wrap(std::string& out, size_t column, size_t indent, std::string_view text);

/// The help of `app`, whatever command is being parsed.
std::string help_of(const CLI::App& app);

/// The commands of `app` that its help lists.
std::vector<const CLI::App*> commands_of(const CLI::App& app);
/// The options of `app` that its help lists, without its positional arguments.
std::vector<const CLI::Option*> options_of(const CLI::App& app);
/// The names of an option as a user writes them, the short ones first: -n, --max-tokens.
std::vector<std::string> names_of(const CLI::Option& option);
/// Whether the option is followed by a value.
bool takes_value(const CLI::Option& option);

/// Follows the words that name commands ("bench", "latency") and returns the last one. Throws
/// UserError for a word that is not a command.
const CLI::App& find_command(const CLI::App& app, const std::vector<std::string>& words);

/// The message of an error in the arguments `words`: what is wrong, what may be meant, and which
/// help describes it.
std::string explain(const CLI::App& app, const CLI::ParseError& error,
                    const std::vector<std::string>& words);

}  // namespace nanovllm
