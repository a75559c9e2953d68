#include "apps/cli/arguments.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

namespace {

constexpr auto kOtherNames = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"-tp", "--tensor-parallel-size"},
     {"-pp", "--pipeline-parallel-size"},
     {"-dcp", "--decode-context-parallel-size"},
     {"-pcp", "--prefill-context-parallel-size"},
     {"-dp", "--data-parallel-size"},
     {"-dpn", "--data-parallel-rank"},
     {"-dpr", "--data-parallel-start-rank"},
     {"-dpl", "--data-parallel-size-local"},
     {"-dpa", "--data-parallel-address"},
     {"-dpp", "--data-parallel-rpc-port"},
     {"-dpb", "--data-parallel-backend"},
     {"-dph", "--data-parallel-hybrid-lb"},
     {"-dpe", "--data-parallel-external-lb"},
     {"-dpm", "--data-parallel-multi-port-external-lb"},
     {"-ep", "--enable-expert-parallel"},
     {"-asc", "--api-server-count"},
     {"-cc", "--compilation-config"},
     {"-ac", "--attention-config"},
     {"-sc", "--speculative-config"},
     {"-dc", "--diffusion-config"},
     {"-q", "--quantization"},
     {"--device-memory-utilization", "--gpu-memory-utilization"}});

/// Whether the word after the option is its value, whatever it looks like.
bool needs_value(Command command, const std::string& name) {
  const std::optional<Option> option = command.find_option(name);
  return option && option->needs_value();
}

/// The word with the long name of its option, in whose first part dashes are between words.
std::string with_usual_name(Command command, std::string word) {
  const std::string level = "--optimization-level";
  if (word.starts_with("-O") && command.has_option(level)) {
    const std::string rest = word.substr(2);
    if (rest.starts_with('.')) return "--compilation-config" + rest;
    return level + (rest.empty() || rest.starts_with('=') ? "" : "=") + rest;
  }
  const size_t end = std::min(word.find_first_of("=."), word.size());
  if (word.starts_with("--"))
    std::replace(word.begin(), word.begin() + static_cast<ptrdiff_t>(end), '_', '-');
  const std::string_view name = std::string_view(word).substr(0, end);
  for (const auto& [other, usual] : kOtherNames)
    if (name == other && command.has_option(std::string(usual)))
      return std::string(usual) + word.substr(end);
  return word;
}

/// The meaning of a flag: `what` is on or off. --no-enable-x and --disable-x have the same meaning.
struct Switch {
  std::string what;
  bool on = true;
};

Switch switch_of(std::string_view flag) {
  constexpr std::string_view kNo = "--no-", kDashes = "--", kDisable = "disable-";
  Switch said;
  said.on = !flag.starts_with(kNo);
  flag.remove_prefix(said.on ? kDashes.size() : kNo.size());
  if (flag.starts_with(kDisable)) {
    said.on = !said.on;
    said.what = "enable-";
    flag.remove_prefix(kDisable.size());
  }
  said.what += flag;
  return said;
}

/// The word for a flag that the command has under another or the opposite name; `name` if it has
/// none.
std::string known_flag(Command command, const std::string& name) {
  const Switch asked = switch_of(name);
  for (const Option option : command.options()) {
    if (option.may_take_value()) continue;
    for (const std::string& known : option.names()) {
      if (!known.starts_with("--")) continue;
      const Switch said = switch_of(known);
      if (said.what == asked.what) return known + (said.on == asked.on ? "" : "=false");
    }
  }
  return name;
}

/// The options that are given as --x.y VALUE.
class DottedOptions {
 public:
  void add(const std::string& name, const std::string& text) {
    const size_t dot = name.find('.');
    Json& object = object_of(name.substr(0, dot));
    std::string path = name.substr(dot + 1);
    const bool is_list = path.ends_with('+');
    if (is_list) path.pop_back();
    Json* at = &object;
    for (size_t begin = 0; begin <= path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      const std::string key = path.substr(begin, end - begin);
      require(!key.empty(), "'{}' must have a name between and behind the dots", name);
      if (!at->is_object()) *at = Json::object();
      at = &(*at)[key];
      begin = end + 1;
    }
    if (!is_list) {
      *at = value_of(text);
      return;
    }
    if (!at->is_array()) *at = Json::array();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      at->push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  void append_to(std::vector<std::string>& words) const {
    for (const auto& [name, object] : objects_) {
      words.push_back(name);
      words.push_back(dump_json(object));
    }
  }

 private:
  static Json value_of(const std::string& text) {
    try {
      return parse_json(text, "");
    } catch (const UserError&) {
      return text;
    }
  }
  Json& object_of(const std::string& name) {
    for (auto& [known, object] : objects_)
      if (known == name) return object;
    return objects_.emplace_back(name, Json::object()).second;
  }

  std::vector<std::pair<std::string, Json>> objects_;  // in the order in which they are given
};

size_t depth_of(Command command) {
  const std::optional<Command> parent = command.parent();
  return parent ? 1 + depth_of(*parent) : 0;
}

}  // namespace

std::vector<std::string> words_for_parser(Command command, std::span<const std::string> words) {
  std::vector<std::string> out, models, positionals;
  DottedOptions dotted;
  const bool takes_model = command.has_option("MODEL") && !command.has_option("--model");
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--") {  // only positional arguments follow
      positionals.assign(words.begin() + static_cast<ptrdiff_t>(i), words.end());
      break;
    }
    if (!words[i].starts_with('-')) {
      out.push_back(words[i]);
      continue;
    }
    const std::string word = with_usual_name(command, words[i]);
    const std::string name = word.starts_with("--") ? word.substr(0, word.find('=')) : word;
    const bool has_value = name.size() < word.size(), is_last = i + 1 == words.size();
    const size_t dot = name.find('.');
    const bool is_dotted = dot != name.npos && needs_value(command, name.substr(0, dot));
    const bool is_model = takes_model && name == "--model";
    if (!(is_model || is_dotted || needs_value(command, name)) || (!has_value && is_last)) {
      const bool is_known = !word.starts_with("--") || has_value || command.has_option(name);
      out.push_back(is_known ? word : known_flag(command, name));
      continue;
    }
    const std::string value = has_value ? word.substr(name.size() + 1) : words[++i];
    if (is_dotted) {
      dotted.add(name, value);
      continue;
    }
    if (!is_model) out.push_back(name);
    (is_model ? models : out).push_back(value);
  }
  dotted.append_to(out);
  out.insert(out.end(), positionals.begin(), positionals.end());
  // MODEL moves to the front, behind the command, where no list of values can take it.
  if (!models.empty())
    out.insert(out.begin() + static_cast<ptrdiff_t>(std::min(depth_of(command), out.size())),
               models.begin(), models.end());
  return out;
}

}  // namespace nanovllm
