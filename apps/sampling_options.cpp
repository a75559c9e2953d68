#include "sampling_options.h"

#include <algorithm>
#include <optional>

#include "apps/cli/json_values.h"
#include "apps/cli/options.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

namespace {

constexpr const char* kFormGroup = "The form of the answer (one of these)";
constexpr const char *kJsonSchema = "--json-schema", *kRegex = "--regex", *kChoice = "--choice",
                     *kGrammar = "--grammar";
constexpr size_t kMaxFormBytes = 1 << 20;

/// The text of a file with a form.
std::string form_in_file(const std::string& path, const char* option) {
  try {
    std::string text = read_file(path, kMaxFormBytes);
    require_utf8(text, path);
    return text;
  } catch (const UserError& e) {
    fail("{}: {}", option, e.what());
  }
}

/// A schema that is given as such or as the path of its file.
std::string schema_of(const std::string& value) {
  if (value.find_first_not_of(" \t\r\n") == value.find('{')) {
    object_of(value, kJsonSchema);
    return value;
  }
  std::string text = form_in_file(value, kJsonSchema);
  object_of(text, fmt::format("{}: {}", kJsonSchema, value));
  return text;
}

}  // namespace

void SamplingOptions::add_to(Command command) {
  add_generation_config(command, generation_config);
  add_sampling_options(command, params);
  command
      .add_value(kJsonSchema, json_schema_,
                 "The answer is JSON that this JSON Schema allows, from a file or as it is")
      .type_name("FILE|JSON")
      .check(not_empty())
      .group(kFormGroup);
  command.add_value(kRegex, regex_, "The whole answer matches this regular expression")
      .type_name("PATTERN")
      .check(utf8_text())
      .check(not_empty())
      .group(kFormGroup);
  command.add_value(kChoice, choices_, "The answer is one of these texts (repeatable)")
      .type_name("TEXT")
      .check(utf8_text())
      .group(kFormGroup);
  command.add_file(kGrammar, grammar_, "The answer follows this grammar, in GBNF or Lark")
      .check(not_empty())
      .group(kFormGroup);
}

void SamplingOptions::find_given(Command command) {
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    if (field.option.empty()) return;
    const std::optional<Option> option = command.find_option(std::string(field.flag()));
    if (option && option->is_given()) given.emplace_back(field.name);
  });
  std::vector<std::string> forms;
  for (const char* name : {kJsonSchema, kRegex, kChoice, kGrammar})
    if (const auto option = command.find_option(name); option && option->is_given())
      forms.emplace_back(name);
  require(forms.size() <= 1, "{} give several forms of the answer; use one of them",
          join(forms, " and "));
  if (forms.empty()) return;
  StructuredOutputs& form = params.constraint.emplace();
  if (forms[0] == kJsonSchema) form.json = schema_of(json_schema_);
  if (forms[0] == kRegex) form.regex = regex_;
  if (forms[0] == kChoice) form.choice = choices_;
  if (forms[0] == kGrammar) form.grammar = form_in_file(grammar_, kGrammar);
}

SamplingParams SamplingOptions::for_chat(const std::string& model) const {
  SamplingParams merged = params;
  if (std::ranges::find(given, "max_tokens") == given.end()) merged.max_tokens = kNoMaxTokens;
  // The options are validated before they are merged, so that an error in an option does not name
  // the checkpoint's file.
  merged.validate();
  return generation_config.apply(model, merged, given);
}

}  // namespace nanovllm
