#include "apps/batch/prompt_line.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/config.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/params/sampling_json.h"
#include "nanovllm/params/structured_json.h"
#include "nanovllm/params/unsupported.h"

namespace nanovllm {

namespace {

constexpr std::array<std::string_view, 3> kPrompts = {"prompt", "prompt_token_ids", "messages"};
constexpr std::array<std::string_view, 6> kRequest = {
    "prompt", "prompt_token_ids", "messages", "tools", "chat_template_kwargs", "enable_thinking"};

bool is_in(const auto& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// The sampling field of which `name` is probably a misspelling, or an empty text.
std::string_view meant_field(std::string_view name) {
  constexpr size_t kLongest = 32;
  std::string_view meant;
  if (name.size() > kLongest) return meant;
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    const size_t length = std::string_view(field.name).size();
    const size_t most = length >= 9 ? 2 : length >= 5 ? 1 : 0;
    if (edit_distance(name, field.name) <= most) meant = field.name;
  });
  return meant;
}

/// Like refuse_unsupported(), but names the place in the message.
bool refuse(const std::string& name, const Json& value, UnsupportedName::Place place,
            const std::string& where) {
  try {
    return refuse_unsupported(name, value, place);
  } catch (const UserError& e) {
    fail("{}: {}", where, e.what());
  }
}

/// Like take_form(), but names the place in the message.
bool take_form_of(const std::string& name, const Json& value, bool in_body, Json& sampling,
                  const std::string& where) {
  try {
    return take_form(name, value, in_body, sampling);
  } catch (const UserError& e) {
    fail("{}: {}", where, e.what());
  }
}

/// Whether the field has a meaning in every line.
bool is_known(const std::string& name) {
  return is_in(kRequest, name) || is_sampling_field(name) || is_form_field(name, false) ||
         find_unsupported(name, UnsupportedName::kLine) != nullptr || name == "sampling_params" ||
         name == "max_completion_tokens" || name == "top_logprobs";
}

bool has(const Json& object, std::string_view name) {
  const auto at = object.find(name);
  return at != object.end() && !at->is_null();
}

}  // namespace

void PromptLine::add_sampling(const std::string& name, const Json& value,
                              const std::string& where) {
  const auto at = sampling.find(name);
  if (at == sampling.end()) sampling[name] = value;
  else if (at->is_null()) *at = value;
  else require(value.is_null(), "{}: {} is given twice", where, name);
}

bool PromptLine::take(const std::string& name, const Json& object, const std::string& where) {
  const Json& value = object[name];
  if (is_in(kRequest, name)) {
    const bool is_unused =
        name == "tools" && has(object, "tool_choice") && object["tool_choice"] == "none";
    require(name != "tools" || value.is_null() || value.is_array(),
            "{}: tools must be a list, not {}", where, printable(value));
    if (!value.is_null() && !is_unused) request[name] = value;
  } else if (name == "tool_choice" && value == "none") {
    return true;
  } else if (name == "max_completion_tokens") {
    add_sampling("max_tokens", value, where);
  } else if (name == "max_tokens" && has(object, "max_completion_tokens")) {
    return true;                                          // the older name of max_completion_tokens
  } else if (name == "logprobs" && value.is_boolean()) {  // the form of the chat API
    const bool with_others = value.get<bool>() && has(object, "top_logprobs");
    if (value.get<bool>())
      add_sampling("logprobs", with_others ? object["top_logprobs"] : Json(0), where);
  } else if (name == "top_logprobs") {
    require(value.is_null() || (has(object, "logprobs") && object["logprobs"] == true),
            "{}: top_logprobs needs logprobs to be true", where);
  } else if (take_form_of(name, value, /*in_body=*/false, sampling, where)) {
    return true;
  } else if (is_sampling_field(name)) {
    add_sampling(name, value, where);
  } else {
    return refuse(name, value, UnsupportedName::kLine, where);
  }
  return true;
}

void PromptLine::read(const Json& line, const std::string& where) {
  const auto num_prompts =
      std::ranges::count_if(kPrompts, [&](const auto& name) { return has(line, name); });
  has_body = num_prompts == 0 && has(line, "body");
  for (const auto& [name, value] : line.items()) {
    const bool is_envelope = has_body && (name == "method" || name == "url" || name == "body");
    if (is_known(name) || is_envelope) continue;
    passed[name] = value;
    if (const std::string_view meant = meant_field(name); warning.empty() && !meant.empty())
      warning = fmt::format("{}: {} is only copied to the result; did you mean {}?", where,
                            printable(name), meant);
  }
  if (num_prompts != 1 && !has_body) {
    std::string names;
    for (const auto& [name, value] : line.items()) names += (names.empty() ? "" : ", ") + name;
    fail("{}: needs exactly one of prompt, prompt_token_ids, messages and body; it has {}", where,
         names.empty() ? "nothing" : printable(names));
  }
  for (const auto& [name, value] : line.items()) take(name, line, where);
  if (has_body) read_body(line, where);
  if (!has(line, "sampling_params")) return;
  require(line["sampling_params"].is_object(), "{}: sampling_params must be an object", where);
  for (const auto& [name, value] : line["sampling_params"].items())
    if (take_form_of(name, value, /*in_body=*/true, sampling, where)) continue;
    else if (is_sampling_field(name) || !refuse(name, value, UnsupportedName::kBody, where))
      add_sampling(name, value, where);
}

void PromptLine::read_body(const Json& line, const std::string& line_name) {
  const std::string where = line_name + ": body";
  const Json& body = line["body"];
  require(body.is_object(), "{}: must be an object", where);
  if (has(line, "method"))
    require(line["method"] == "POST", "{}: method is {}; it must be \"POST\"", line_name,
            printable(line["method"]));
  // Like the server, refuse unsupported fields that would change the answer, and ignore others.
  for (const auto& [name, value] : body.items()) {
    if (take_form_of(name, value, /*in_body=*/true, sampling, where) || take(name, body, where) ||
        refuse(name, value, UnsupportedName::kBody, where))
      continue;
    if (const std::string_view meant = meant_field(name); warning.empty() && !meant.empty())
      warning = fmt::format("{}: {} is ignored; did you mean {}?", where, printable(name), meant);
  }
  if (has(line, "url")) {
    const bool chat = line["url"] == "/v1/chat/completions";
    require(chat || line["url"] == "/v1/completions",
            "{}: url is {}; it must be \"/v1/chat/completions\" or \"/v1/completions\"", line_name,
            printable(line["url"]));
    require(request.contains(chat ? "messages" : "prompt"), "{}: has no {}", where,
            chat ? "messages" : "prompt");
  }
  const auto num_prompts =
      std::ranges::count_if(kPrompts, [&](const auto& name) { return request.contains(name); });
  require(num_prompts == 1, "{}: needs exactly one of messages and prompt", where);
  if (!request.contains("prompt") || !request["prompt"].is_array()) return;
  // OpenAI's API also takes a list of prompts, and token ids instead of a text.
  Json prompt = request["prompt"];
  if (prompt.size() == 1 && !prompt[0].is_number()) prompt = Json(prompt[0]);
  require(prompt.is_string() ||
              (prompt.is_array() && std::ranges::all_of(prompt, &Json::is_number_integer)),
          "{}: prompt must be one text or one list of token ids", where);
  const char* const name = prompt.is_string() ? "prompt" : "prompt_token_ids";
  request.erase("prompt");
  request[name] = std::move(prompt);
}

}  // namespace nanovllm
