#include "apps/cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <concepts>
#include <limits>
#include <ranges>
#include <utility>

namespace nanovllm {

namespace {

template <class T>
constexpr bool kIsList = false;
template <class T>
constexpr bool kIsList<std::vector<T>> = true;

/// Makes the option accept the values of its type. CLI11's own conversions read '' as 0, a number
/// that is too large as the largest one, and 010 as 8. A negative seed wraps around, as in JSON.
template <class T>
void check_value(Option option, const T&) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::same_as<T, uint64_t>)
    option.transform(whole_number(std::numeric_limits<int64_t>::min(), Limits::max()));
  else if constexpr (std::same_as<T, int64_t>) option.transform(count());
  else if constexpr (std::integral<T>) option.transform(whole_number(Limits::min(), Limits::max()));
  else if constexpr (std::floating_point<T>) option.check(decimal_number());
}
template <class T>
void check_value(Option option, const std::optional<T>&) {
  check_value(option, T());
}
template <class T>
void check_value(Option option, const std::vector<T>&) {
  check_value(option, T());
}

}  // namespace

Option Option::type_name(const std::string& name) { return option_->type_name(name), *this; }
Option Option::description(const std::string& text) { return option_->description(text), *this; }
Option Option::group(const std::string& heading) { return option_->group(heading), *this; }
Option Option::default_text(const std::string& text) { return option_->default_str(text), *this; }
Option Option::show_default() { return option_->capture_default_str(), *this; }
Option Option::required() { return option_->required(), *this; }
Option Option::excludes(Option other) { return option_->excludes(other.option_), *this; }
Option Option::check(Check check) {
  return option_->check(CLI::Validator(std::move(check), "")), *this;
}
Option Option::transform(Check check) {
  return option_->transform(CLI::Validator(std::move(check), "")), *this;
}
Option Option::take_several() {
  return option_->expected(CLI::detail::expected_max_vector_size), *this;
}

std::string Option::name() const { return option_->get_name(); }
std::vector<std::string> Option::names() const {
  std::vector<std::string> names;
  for (const std::string& name : option_->get_snames()) names.push_back("-" + name);
  for (const std::string& name : option_->get_lnames()) names.push_back("--" + name);
  return names;
}
std::string Option::type_name() const { return option_->get_type_name(); }
std::string Option::description() const { return option_->get_description(); }
std::string Option::group() const { return option_->get_group(); }
std::string Option::default_text() const { return option_->get_default_str(); }
bool Option::is_positional() const { return option_->get_positional(); }
bool Option::is_required() const { return option_->get_required(); }
bool Option::may_take_value() const { return option_->get_items_expected_max() > 0; }
bool Option::needs_value() const { return option_->get_items_expected_min() > 0; }
std::vector<std::string> Option::choices() const {
  std::vector<std::string> choices;
  const std::string names = type_name();
  for (const auto part : std::views::split(names, '|'))
    choices.emplace_back(part.begin(), part.end());
  const bool are_choices = choices.size() > 1 &&
                           std::ranges::none_of(names, [](char c) { return c >= 'A' && c <= 'Z'; });
  return are_choices ? choices : std::vector<std::string>();
}

bool Option::is_given() const { return option_->count() > 0; }
bool Option::is_on() const { return is_given() && option_->as<bool>(); }
std::string Option::value() const { return is_given() ? option_->as<std::string>() : ""; }
std::vector<std::string> Option::values() const { return option_->results(); }
void Option::set_value(const std::string& value) {
  option_->clear();
  option_->add_result(value);
  option_->run_callback();  // sets the variable
}

Command Command::add_command(const std::string& name, const std::string& description) {
  return {app_->add_subcommand(name, description), action_};
}

template <class T>
Option Command::add_value(const std::string& names, T& value, const std::string& text) {
  CLI::Option* const added = app_->add_option(names, value, text);
  if constexpr (kIsList<T>) added->allow_extra_args(false);
  else added->take_last();
  check_value(Option(added), value);
  return Option(added);
}
template Option Command::add_value(const std::string&, std::string&, const std::string&);
template Option Command::add_value(const std::string&, int32_t&, const std::string&);
template Option Command::add_value(const std::string&, int64_t&, const std::string&);
template Option Command::add_value(const std::string&, uint64_t&, const std::string&);
template Option Command::add_value(const std::string&, double&, const std::string&);
template Option Command::add_value(const std::string&, std::optional<int64_t>&, const std::string&);
template Option Command::add_value(const std::string&, std::optional<uint64_t>&,
                                   const std::string&);
template Option Command::add_value(const std::string&, std::vector<std::string>&,
                                   const std::string&);
template Option Command::add_value(const std::string&, std::vector<int32_t>&, const std::string&);

template <class T>
Option Command::add_required(const std::string& names, T& value, const std::string& text) {
  return Option(app_->add_option(names, value, text)->required());
}
template Option Command::add_required(const std::string&, std::string&, const std::string&);
template Option Command::add_required(const std::string&, int32_t&, const std::string&);

Option Command::add_file(const std::string& names, std::string& value, const std::string& text) {
  return add_value(names, value, text).type_name("FILE").check(not_empty());
}

Option Command::add_bytes(const std::string& names, int64_t& value, const std::string& text) {
  return Option(app_->add_option(names, value, text)->take_last()).transform(byte_size());
}

Option Command::add_choice(const std::string& names, std::string& value, const std::string& choices,
                           const std::string& text) {
  Option added = add_value(names, value, text).type_name(choices).show_default();
  return added.check(known_name(added.choices()));
}

Option Command::add_function(const std::string& names,
                             std::function<std::string(const std::vector<std::string>&)> set,
                             const std::string& text) {
  const auto set_or_throw = [names, set = std::move(set)](const std::vector<std::string>& values) {
    if (const std::string error = set(values); !error.empty())
      throw CLI::ValidationError(names, error);
    return true;
  };
  return Option(app_->add_option(names, set_or_throw, text)->take_all());
}

Option Command::add_flag(const std::string& names, const std::string& text) {
  return Option(app_->add_flag(names, text));
}
Option Command::add_flag(const std::string& names, bool& value, const std::string& text) {
  return Option(app_->add_flag(names, value, text));
}
Option Command::add_flag(const std::string& names, std::function<void()> set,
                         const std::string& text) {
  return Option(app_->add_flag_callback(names, std::move(set), text));
}
Option Command::add_flag(const std::string& names, std::function<void(int64_t)> set,
                         const std::string& text) {
  return Option(app_->add_flag_function(names, std::move(set), text));
}
void Command::remove_option(const std::string& name) {
  app_->remove_option(app_->get_option(name));
}

void Command::footer(const std::string& text) { app_->footer(text); }
void Command::hide() { app_->group(""); }
void Command::require_command() { app_->require_subcommand(1); }
void Command::action(std::function<int()> run) {
  app_->callback([chosen = action_, run = std::move(run)] { *chosen = run; });
}

std::string Command::name() const { return app_->get_name(); }
std::string Command::description() const { return app_->get_description(); }
std::string Command::footer() const { return app_->get_footer(); }
std::optional<Command> Command::parent() const {
  if (app_->get_parent() == nullptr) return std::nullopt;
  return Command(app_->get_parent(), action_);
}
std::vector<Command> Command::commands() const {
  std::vector<Command> commands;
  for (CLI::App* sub : app_->get_subcommands([](CLI::App* s) { return !s->get_group().empty(); }))
    commands.push_back({sub, action_});
  return commands;
}
std::vector<Option> Command::options() const {
  std::vector<Option> options;
  for (CLI::Option* option : app_->get_options()) options.emplace_back(option);
  return options;
}
std::optional<Option> Command::find_option(const std::string& name) const {
  CLI::Option* const found = app_->get_option_no_throw(name);
  return found == nullptr ? std::nullopt : std::optional(Option(found));
}
Option Command::option(const std::string& name) const { return Option(app_->get_option(name)); }

Command Command::chosen() const {
  CLI::App* command = app_;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return {command, action_};
}
std::vector<Option> Command::given_options() const {
  std::vector<Option> options;
  for (CLI::Option* option : app_->parse_order()) options.emplace_back(option);
  return options;
}
std::vector<std::string> Command::unknown_words() const { return app_->remaining(); }

Program::Program(const std::string& name, const std::string& description)
    : Program(std::make_unique<CLI::App>(description, name)) {}

Program::Program(std::unique_ptr<CLI::App> app)
    : Command(app.get(), &action_), owned_(std::move(app)) {
  owned_->set_help_flag("-h,--help", "Print this help");
  owned_->set_version_flag("-v,-V,--version", "", "Print the version");
}

Program::~Program() = default;

Program::Request Program::parse(std::vector<std::string> words) {
  try {
    std::ranges::reverse(words);  // CLI11 expects the last one first
    owned_->parse(words);
    return Request::kCommand;
  } catch (const CLI::CallForHelp&) {
    return Request::kHelp;
  } catch (const CLI::CallForVersion&) {
    return Request::kVersion;
  } catch (const CLI::ParseError& error) {
    throw ParseError(error.what());
  }
}

int Program::run() const { return action_(); }

}  // namespace nanovllm
