#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "apps/cli/checks.h"

// CLI11 parses the command line. Compiling its header takes seconds, so only command.cpp includes
// it.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace nanovllm {

/// An option or a positional argument of a command. This is a handle: its copies refer to the same
/// option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  // -- These describe the option, and return it.
  Option type_name(const std::string& name);     ///< the help's name for the value
  Option description(const std::string& text);   ///< replaces the description
  Option group(const std::string& heading);      ///< heading in the help; empty: not listed
  Option default_text(const std::string& text);  ///< the default that the help shows
  Option show_default();                         ///< shows the variable's value as the default
  Option required();
  Option excludes(Option other);
  Option check(Check check);      ///< runs after the other checks of the option
  Option transform(Check check);  ///< runs before the other checks of the option
  Option take_several();          ///< several values may follow the name

  std::string name() const;                ///< --max-tokens or MODEL; empty if no help lists it
  std::vector<std::string> names() const;  ///< all names that a user can write, short ones first
  std::string type_name() const;
  std::string description() const;
  std::string group() const;
  std::string default_text() const;
  bool is_positional() const;
  bool is_required() const;
  bool may_take_value() const;  ///< false for a flag
  bool needs_value() const;     ///< the next word is its value, even if it looks like an option
  /// The values that the help lists, as in "--device auto|cpu|cuda". Empty if the help describes
  /// the value by a name in capitals.
  std::vector<std::string> choices() const;

  // -- What the command line has said, once it is parsed.
  bool is_given() const;
  bool is_on() const;                        ///< whether a flag is given, and not as --flag=false
  std::string value() const;                 ///< empty if the option is not given
  std::vector<std::string> values() const;   ///< the values that were written
  void set_value(const std::string& value);  ///< replaces the value, in the variable too

 private:
  CLI::Option* option_;
};

/// A command of the program, or the program itself. This is a handle: its copies refer to the same
/// command.
class Command {
 public:
  // -- These describe the command. `names` are those of an option, "-n,--name", or the name of a
  // positional argument, "NAME".
  Command add_command(const std::string& name, const std::string& description);

  /// Adds an option that sets `value` and accepts values of its type: a text, a whole or decimal
  /// number (checks.h), or a list. If the option is given several times, the last one counts,
  /// unless `value` is a list. command.cpp instantiates it for the types that options have.
  template <class T>
  Option add_value(const std::string& names, T& value, const std::string& text);
  /// Adds an option or argument that must be given exactly once. Its value is not checked.
  template <class T>
  Option add_required(const std::string& names, T& value, const std::string& text);
  /// Adds an option with the name of a file, which must not be empty.
  Option add_file(const std::string& names, std::string& value, const std::string& text);
  /// Adds an option with a number of bytes (byte_size()).
  Option add_bytes(const std::string& names, int64_t& value, const std::string& text);
  /// Adds an option whose value is one of `choices`, separated by '|' as the help shows them.
  Option add_choice(const std::string& names, std::string& value, const std::string& choices,
                    const std::string& text);
  /// Adds an option that hands all its values to `set`, which returns what is wrong with them.
  Option add_function(const std::string& names,
                      std::function<std::string(const std::vector<std::string>& values)> set,
                      const std::string& text);

  Option add_flag(const std::string& names, const std::string& text);
  Option add_flag(const std::string& names, bool& value, const std::string& text);
  /// Adds a flag and calls `set` if it is given.
  Option add_flag(const std::string& names, std::function<void()> set, const std::string& text);
  /// Adds a flag and calls `set` with the number of times that it is given; --flag=false counts as
  /// -1.
  Option add_flag(const std::string& names, std::function<void(int64_t count)> set,
                  const std::string& text);
  void remove_option(const std::string& name);

  void footer(const std::string& text);   ///< the end of the help
  void hide();                            ///< hides the command from the help
  void require_command();                 ///< one of its subcommands must follow
  void action(std::function<int()> run);  ///< runs the command and returns the exit status

  std::string name() const;
  std::string description() const;
  std::string footer() const;
  std::optional<Command> parent() const;
  std::vector<Command> commands() const;  ///< the subcommands that the help lists
  std::vector<Option> options() const;    ///< all options and positional arguments
  std::optional<Option> find_option(const std::string& name) const;
  bool has_option(const std::string& name) const { return find_option(name).has_value(); }
  /// An option that the command must have.
  Option option(const std::string& name) const;

  // -- What the command line has said, once it is parsed.
  Command chosen() const;                     ///< the subcommand that was named, or this command
  std::vector<Option> given_options() const;  ///< in the order of the command line
  std::vector<std::string> unknown_words() const;

 protected:
  Command(CLI::App* app, std::function<int()>* action) : app_(app), action_(action) {}

 private:
  CLI::App* app_;
  std::function<int()>* action_;  // the program's variable for the action of the chosen command
};

/// An error in a command line, in the words of CLI11 or of a Check.
struct ParseError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The program: the owner of all commands and options.
class Program : public Command {
 public:
  /// Makes a program with the options --help and --version.
  Program(const std::string& name, const std::string& description);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  enum class Request : uint8_t { kCommand, kHelp, kVersion };
  /// Reads the words after the program's name, and sets the variables of the options. Returns
  /// whether they ask for the help, the version or a run. Throws ParseError.
  Request parse(std::vector<std::string> words);
  /// Runs the command that the words have named. Returns the exit status.
  int run() const;

 private:
  explicit Program(std::unique_ptr<CLI::App> app);

  std::unique_ptr<CLI::App> owned_;
  std::function<int()> action_;
};

}  // namespace nanovllm
