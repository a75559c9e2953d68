#include "nanovllm/server/openai/request.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "nanovllm/params/sampling_json.h"
#include "nanovllm/params/structured_json.h"
#include "nanovllm/params/unsupported.h"
#include "nanovllm/server/openai/limits.h"
#include "nanovllm/server/openai/request_fields.h"
#include "nanovllm/text/conversation.h"

namespace nanovllm::server {

namespace {

constexpr int64_t kCompletionTokens = 16;  // the default of OpenAI's API

// Fields that are read below and are neither sampling fields nor refused.
constexpr auto kOfCompletions = std::to_array<std::string_view>({"echo"});
constexpr auto kOfChat = std::to_array<std::string_view>(
    {"tool_choice", "parallel_tool_calls", "add_generation_prompt", "continue_final_message"});

void check_list(const Json& body, const std::string& name, size_t most) {
  const Json* list = find_field(body, name);
  if (list != nullptr && list->is_array() && list->size() > most)
    refuse_field(name, "has {} entries; at most {} are allowed", list->size(), most);
}

/// The size of bad_words as texts; the work on them is in proportion to it.
void check_bad_word_bytes(const Json& body) {
  const Json* words = find_field(body, "bad_words");
  if (words == nullptr || !words->is_array()) return;
  size_t bytes = 0;
  for (const Json& word : *words)
    if (word.is_string()) bytes += word.string().size();
  if (bytes > kMaxBadWordBytes)
    refuse_field("bad_words", "has {} bytes of text; at most {} are allowed", bytes,
                 kMaxBadWordBytes);
}

/// The fields of the body that are sampling fields. Fields that ask for what this program cannot do
/// are refused, except for those that the endpoint reads itself.
Json sampling_of(const Json& body, auto read_elsewhere, OpenAiRequest& request) {
  check_list(body, "stop", kMaxStops);
  check_list(body, "stop_token_ids", kMaxStopTokenIds);
  check_list(body, "bad_words", kMaxBadWords);
  check_bad_word_bytes(body);
  Json sampling = Json::object();
  for (auto field = body.begin(); field != body.end(); ++field) {
    if (std::ranges::find(read_elsewhere, field.key()) != read_elsewhere.end()) continue;
    const bool is_form = naming_field(
        [&] { return take_form(field.key(), field.value(), /*in_body=*/true, sampling); });
    if (is_form && !field.value().is_null()) request.form_field = field.key();
    else if (is_form) continue;
    else if (is_sampling_field(field.key())) sampling[field.key()] = field.value();
    else refuse_unsupported_field(field.key(), field.value(), UnsupportedName::kBody);
  }
  return sampling;
}

/// `rename` says how the client calls a sampling field.
template <class Rename = std::identity>
SamplingParams params_of(const Json& sampling, const SamplingParams& defaults, Rename rename = {}) {
  const std::string where = "request";
  return naming_field(
      [&] {
        try {
          return sampling_params_from_json(sampling, defaults, where);
        } catch (const UserError& e) {
          throw UserError(std::string(e.what()).substr(where.size() + 2));
        }
      },
      rename);
}

void read_stream_options(const Json& body, OpenAiRequest& request) {
  request.stream = bool_field(body, "stream", false);
  const Json* options = find_field(body, "stream_options");
  if (options == nullptr || !request.stream) return;
  if (!options->is_object())
    refuse_field("stream_options", "must be an object, not {}", printable(*options));
  request.include_usage = bool_field(*options, "include_usage", false);
  request.continuous_usage =
      bool_field(*options, "continuous_usage_stats", false) && request.include_usage;
}

void read_common(const Json& body, OpenAiRequest& request, bool add_special_tokens) {
  const Json* model = find_field(body, "model");
  const bool is_empty = model != nullptr && model->is_string() && model->string().empty();
  if (!is_empty) request.model = name_field(body, "model");
  read_stream_options(body, request);
  request.return_token_ids = bool_field(body, "return_token_ids", false);
  request.return_prompt_logprobs = request.params.prompt_logprobs.has_value();
  if (request.stream && request.return_prompt_logprobs)
    refuse_field("prompt_logprobs", "needs stream to be false");
  request.add_special_tokens = bool_field(body, "add_special_tokens", add_special_tokens);
  request.cache_salt = name_field(body, "cache_salt");
  integer_field(body, "priority", 0);  // checked, but without effect
}

void check_num_choices(int64_t n, size_t num_prompts) {
  const auto prompts = static_cast<int64_t>(num_prompts);
  if (n * prompts > kMaxChoices)
    refuse_field("n", "is {} for {} prompts; a request has at most {} answers", n, prompts,
                 kMaxChoices);
}

std::vector<int32_t> ids_of(const Json& list, const std::string& where) {
  if (list.empty()) throw ApiError(400, where + " is an empty list", "prompt");
  try {
    return token_ids_from_json(list, where);
  } catch (const UserError& e) {
    throw ApiError(400, e.what(), "prompt");
  }
}

std::vector<PromptInput> prompts_of(const Json& body) {
  const Json* prompt = find_field(body, "prompt");
  if (prompt == nullptr) refuse_field("prompt", "is missing");
  if (prompt->is_string()) return {prompt->get<std::string>()};
  if (!prompt->is_array())
    refuse_field("prompt", "must be a text, a list of texts, token ids, or a list of such lists");
  if (prompt->empty() || prompt->front().is_number()) return {ids_of(*prompt, "prompt")};
  if (prompt->size() > kMaxPrompts)
    refuse_field("prompt", "is a list of {} prompts; at most {} are allowed", prompt->size(),
                 kMaxPrompts);
  std::vector<PromptInput> prompts;
  for (const Json& item : *prompt) {
    if (item.is_string()) prompts.emplace_back(item.get<std::string>());
    else if (item.is_array())
      prompts.emplace_back(ids_of(item, fmt::format("prompt[{}]", prompts.size())));
    else
      refuse_field("prompt", "contains {}; it must be a text or a list of token ids",
                   printable(item));
  }
  return prompts;
}

/// Texts of an answer are one text, which can be continued.
void join_text_parts(Json& answer) {
  const auto content = answer.find("content");
  if (content == answer.end() || !content->is_array() || content->empty()) return;
  std::string text;
  for (const Json& part : *content) {
    const bool is_text =
        part.is_object() && part.value("type", Json()) == "text" && part.contains("text");
    if (!is_text || !part["text"].is_string()) return;
    text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
  }
  *content = std::move(text);
}

/// Whether the last message is an answer that the client has begun and the model continues. Unless
/// the client says what is meant, it is if the message is the assistant's and has a text.
bool continues_answer(const Json& body, const Json& last) {
  const bool is_answer = last["role"] == "assistant";
  if (find_field(body, "continue_final_message") != nullptr) {
    const bool continues = bool_field(body, "continue_final_message", false);
    if (continues && !is_answer)
      refuse_field("continue_final_message", "needs a last message of the role \"assistant\"");
    if (continues && bool_field(body, "add_generation_prompt", false))
      refuse_field("continue_final_message", "and add_generation_prompt cannot both be true");
    return continues;
  }
  if (!is_answer || bool_field(body, "add_generation_prompt", false)) return false;
  const Json* content = find_field(last, "content");
  const Json* calls = find_field(last, "tool_calls");
  const bool has_calls = calls != nullptr && calls->is_array() && !calls->empty();
  return !has_calls && content != nullptr && content->is_string() && !content->string().empty();
}

/// Which functions an answer may or must call.
struct ToolChoice {
  std::string mode = "auto";                           // or none, required
  std::optional<std::vector<std::string>> names = {};  // of the functions; nothing: all
  bool is_one_call = false;   // a function that is named is called once, as in OpenAI's API
  bool hides_others = false;  // the model does not see the other functions
};

/// The name of a function in the form of chat completions, or in that of the Responses API.
const Json& name_of_choice(const Json& choice) {
  const Json& function = choice["function"];
  return function.is_object() ? function["name"] : choice["name"];
}

ToolChoice tool_choice_of(const Json& body) {
  const Json* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return {};
  ToolChoice result;
  Json mode = *choice;
  const Json& type = (*choice)["type"];
  if (type == "function" && name_of_choice(*choice).is_string()) {
    mode = "required";
    result.is_one_call = true;
    result.names = {name_of_choice(*choice).string()};
  } else if (type == "allowed_tools") {
    const Json& allowed =
        (*choice)["allowed_tools"].is_object() ? (*choice)["allowed_tools"] : *choice;
    mode = allowed.value("mode", Json("auto"));
    result.names.emplace();
    result.hides_others = true;
    for (const Json& tool : allowed["tools"])
      if (tool["type"] == "function" && name_of_choice(tool).is_string())
        result.names->push_back(name_of_choice(tool).string());
  }
  if (mode != "none" && mode != "auto" && mode != "required")
    refuse_field("tool_choice",
                 "{} is not supported; it must be \"none\", \"auto\", \"required\", a function "
                 "or allowed_tools",
                 printable(*choice));
  result.mode = mode.string();
  return result;
}

void check_tool(const Json& tool) {
  if (!tool.is_object()) refuse_field("tools", "contains {}, not an object", printable(tool));
  const Json* type = find_field(tool, "type");
  if (type != nullptr && *type != "function")
    refuse_field("tools", "contains the type {}; only \"function\" is supported", printable(*type));
  const Json& function = tool["function"];
  if (!function.is_object() || !function["name"].is_string())
    refuse_field("tools", "contains a tool without a function that has a name");
}

/// Reads which functions may be called, and leaves in the body only the tools that the model sees.
void read_tools(Json& body, ChatRequest& request) {
  const ToolChoice choice = tool_choice_of(body);
  Json shown = Json::array();
  if (const Json* tools = find_field(body, "tools")) {
    if (!tools->is_array()) refuse_field("tools", "must be a list, not {}", printable(*tools));
    for (const Json& tool : *tools) {
      check_tool(tool);
      const std::string& name = tool["function"]["name"].string();
      const bool is_chosen = !choice.names || std::ranges::count(*choice.names, name) > 0;
      if (is_chosen && choice.mode != "none") request.tool_names.push_back(name);
      if (is_chosen || !choice.hides_others) shown.push_back(tool);
    }
  }
  request.must_call = choice.mode == "required";
  if (choice.is_one_call) request.parallel_tool_calls = false;
  if (request.must_call && request.tool_names.empty())
    refuse_field("tool_choice", "asks for a call, but tools has no such function");
  if (request.tool_names.empty()) body.erase("tools");
  else body["tools"] = std::move(shown);
}

/// How much the model shall think, in the forms of OpenAI ("reasoning_effort"), OpenRouter
/// ("reasoning") and others ("thinking"). Only the template knows what it can do about it.
void add_reasoning(const Json& body, Json& variables) {
  std::string effort = name_field(body, "reasoning_effort");
  if (const Json* reasoning = find_field(body, "reasoning"); reasoning && reasoning->is_object()) {
    if (effort.empty()) effort = name_field(*reasoning, "effort");
    if (!bool_field(*reasoning, "enabled", true)) effort = "none";
  }
  if (const Json* thinking = find_field(body, "thinking"); thinking && thinking->is_object()) {
    const Json type = thinking->value("type", Json());
    if (type == "enabled" || type == "disabled")
      variables.emplace("enable_thinking", type == "enabled");
  }
  if (effort.empty()) return;
  variables.emplace("reasoning_effort", effort);
  if (effort == "none") variables.emplace("enable_thinking", false);
}

/// The variables that the chat template gets besides those that a line of a batch file can have.
void add_variables(const Json& body, bool continues_answer, Json& variables) {
  variables["add_generation_prompt"] =
      !continues_answer && bool_field(body, "add_generation_prompt", true);
  variables["continue_final_message"] = continues_answer;
  if (const Json* documents = find_field(body, "documents")) {
    if (!documents->is_array()) refuse_field("documents", "must be a list");
    variables["documents"] = *documents;
  }
  add_reasoning(body, variables);
}

/// Replaces the fields logprobs and top_logprobs of the chat API by the one that is meant.
void read_chat_logprobs(const Json& body, Json& sampling) {
  sampling.erase("logprobs");
  const bool logprobs = bool_field(body, "logprobs", false);
  const Json* top = find_field(body, "top_logprobs");
  if (!logprobs && top != nullptr && *top != 0)
    refuse_field("top_logprobs", "needs logprobs to be true");
  if (logprobs) sampling["logprobs"] = top == nullptr ? Json(0) : *top;
}

}  // namespace

CompletionRequest completion_request(const Json& body, const SamplingParams& defaults) {
  check_is_object(body);
  CompletionRequest request;
  Json sampling = sampling_of(body, kOfCompletions, request);
  request.echo = bool_field(body, "echo", false);
  if (!sampling.contains("max_tokens")) sampling["max_tokens"] = kCompletionTokens;
  if (request.echo && sampling["max_tokens"] == 0) {
    request.prompt_only = true;
    sampling["max_tokens"] = 1;
  }
  if (sampling.contains("logprobs") && sampling["logprobs"] == false) sampling.erase("logprobs");
  request.params = params_of(sampling, defaults);
  read_common(body, request, /*add_special_tokens=*/true);
  if (request.echo && request.params.logprobs) {
    if (request.stream) refuse_field("logprobs", "with echo needs stream to be false");
    if (!request.params.prompt_logprobs) request.params.prompt_logprobs = request.params.logprobs;
  }
  request.prompts = prompts_of(body);
  check_num_choices(request.params.n, request.prompts.size());
  return request;
}

void free_lists(SamplingParams& params) {
  params.stop = {};
  params.bad_words = {};
  params.stop_token_ids = {};
  params.allowed_token_ids.reset();
  params.logit_bias.clear();
  params.constraint.reset();
}

ChatRequest chat_request(Json body, const SamplingParams& defaults) {
  check_is_object(body);
  ChatRequest request;
  Json sampling = sampling_of(body, kOfChat, request);
  read_chat_logprobs(body, sampling);
  // max_tokens is the older name of max_completion_tokens.
  const Json* newer = find_field(body, "max_completion_tokens");
  if (newer != nullptr) sampling["max_tokens"] = *newer;
  // Null means the default here: a model's own limit holds for all its conversations.
  if (sampling.contains("max_tokens") && sampling["max_tokens"].is_null())
    sampling.erase("max_tokens");
  request.params = params_of(sampling, defaults, [&](const std::string& name) -> std::string {
    if (name == "max_tokens" && newer != nullptr) return "max_completion_tokens";
    return name == "logprobs" ? "top_logprobs" : name;
  });
  read_common(body, request, /*add_special_tokens=*/false);
  request.parallel_tool_calls = bool_field(body, "parallel_tool_calls", true);
  read_tools(body, request);
  Json conversation = Json::object();
  for (const char* name : {"messages", "tools", "chat_template_kwargs", "enable_thinking"})
    if (body.contains(name)) conversation[name] = std::move(body[name]);
  request.variables = naming_field([&] { return template_variables(std::move(conversation)); });
  Json& last = request.variables["messages"].back();
  if (last["role"] == "assistant") join_text_parts(last);
  request.continues_answer = continues_answer(body, last);
  add_variables(body, request.continues_answer, request.variables);
  return request;
}

}  // namespace nanovllm::server
