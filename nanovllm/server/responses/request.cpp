#include "nanovllm/server/responses/request.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/params/sampling_json.h"
#include "nanovllm/params/structured_json.h"
#include "nanovllm/server/openai/request_fields.h"

namespace nanovllm::server {

namespace {

// Fields of chat completions that mean the same here.
constexpr auto kResponsesSame = std::to_array<const char*>(
    {"model", "stream", "parallel_tool_calls", "reasoning", "chat_template_kwargs",
     "enable_thinking", "cache_salt", "priority"});

// -- Items become messages.

/// Adds items to a conversation in the form of chat completions. Items of the assistant that follow
/// each other are one message: its thoughts, its text and its calls.
class Messages {
 public:
  explicit Messages(Json& messages) : messages_(messages) {}

  void add(const Json& item, const std::string& where) {
    if (!item.is_object()) throw ApiError(400, where + " must be an object", "input");
    const Json type = item.value("type", Json("message"));
    if (type == "message") {
      add_message(item, where);
    } else if (type == "reasoning") {
      add_thoughts(item);
    } else if (type == "function_call" || type == "custom_tool_call") {
      add_call(item, type == "function_call", where);
    } else if (const Json* output = find_field(item, "output");
               output && item.contains("call_id")) {
      // Results of functions, and of tools that are none
      messages_.push_back({{"role", "tool"},
                           {"tool_call_id", item["call_id"]},
                           {"content", output->is_object() ? Json(dump_json(*output)) : *output}});
    } else if (type != "item_reference") {
      // Another kind of act of the assistant, whose JSON says what it was
      Json& message = assistant(/*with_text=*/true);
      message["content"] = dump_json(item);
    }
  }

 private:
  void add_message(const Json& item, const std::string& where) {
    const Json* role = find_field(item, "role");
    if (role == nullptr || !role->is_string())
      throw ApiError(400, where + " must have a type that is known, or a role", "input");
    const Json content = item.value("content", Json());
    if (*role == "assistant") assistant(/*with_text=*/true)["content"] = text_of(content);
    else messages_.push_back({{"role", *role}, {"content", content}});
  }

  /// Several texts of an answer are one.
  static Json text_of(const Json& content) {
    if (!content.is_array()) return content;
    std::string text;
    for (const Json& part : content) {
      const bool is_text = part.is_object() && part.value("type", Json()) == "output_text" &&
                           part.contains("text") && part["text"].is_string();
      if (!is_text) return content;
      text += part["text"].string();
    }
    return text;
  }

  /// The thoughts themselves or, if the client has only that, a summary of them.
  void add_thoughts(const Json& item) {
    for (const char* field : {"content", "summary"}) {
      const Json* parts = find_field(item, field);
      std::string text;
      for (const Json& part : parts != nullptr && parts->is_array() ? *parts : Json::array())
        if (part.is_object() && part.contains("text") && part["text"].is_string())
          text += part["text"].string();
      if (text.empty()) continue;
      Json& message = assistant(/*with_text=*/true);
      message["reasoning_content"] = message.value("reasoning_content", std::string()) + text;
      return;
    }
  }

  void add_call(const Json& item, bool is_function, const std::string& where) {
    const Json* name = find_field(item, "name");
    const Json* id = find_field(item, "call_id");
    if (name == nullptr || !name->is_string() || id == nullptr || !id->is_string())
      throw ApiError(400, where + " must have a name and a call_id", "input");
    Json arguments = item.value(is_function ? "arguments" : "input", Json());
    if (!is_function) arguments = Json({{"input", arguments}});
    assistant(/*with_text=*/false)["tool_calls"].push_back(
        {{"id", *id},
         {"type", "function"},
         {"function", {{"name", *name}, {"arguments", std::move(arguments)}}}});
  }

  /// The message of the assistant at the end, or a new one. A text begins a new one behind another
  /// text, and behind calls.
  Json& assistant(bool with_text) {
    const bool continues = !messages_.empty() && messages_.back()["role"] == "assistant" &&
                           !(with_text && (messages_.back().contains("tool_calls") ||
                                           !messages_.back()["content"].is_null()));
    if (!continues) messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
    return messages_.back();
  }

  Json& messages_;
};

Json input_of(const Json& body) {
  const Json* input = find_field(body, "input");
  if (input == nullptr) refuse_field("input", "is missing");
  if (input->is_string())
    return Json::array({{{"type", "message"}, {"role", "user"}, {"content", *input}}});
  if (!input->is_array() || input->empty())
    refuse_field("input", "must be a text or a list of at least one item");
  return *input;
}

/// Replaces references to items of stored responses by the items.
void resolve_references(Json& input, ResponseStore& store) {
  for (size_t i = 0; i < input.size(); ++i) {
    Json& item = input[i];
    if (!item.is_object() || item.value("type", Json()) != "item_reference") continue;
    const Json* id = find_field(item, "id");
    Json found =
        id != nullptr && id->is_string() ? store.find_item(id->get<std::string>()) : Json();
    if (found.is_null())
      throw ApiError(404,
                     fmt::format("input[{}] refers to {}, which is not stored here: send the item "
                                 "itself",
                                 i, printable(item.value("id", Json()))),
                     "input");
    item = std::move(found);
  }
}

// -- Tools

/// Says once in the log that tools of a type are ignored.
void log_ignored(const std::string& type) {
  constexpr size_t kMostTypes = 64;
  static std::mutex mutex;
  static std::set<std::string> known;
  const std::scoped_lock lock(mutex);
  if (known.size() < kMostTypes && known.insert(type).second)
    log().info("tools of the type {} are ignored: a model can only call functions",
               printable(type));
}

Json responses_tools(const Json& tools) {
  if (!tools.is_array()) refuse_field("tools", "must be a list, not {}", printable(tools));
  Json functions = Json::array();
  for (const Json& tool : tools) {
    const Json type = tool.is_object() ? tool.value("type", Json()) : Json();
    if (!type.is_string()) refuse_field("tools", "contains {}, which has no type", printable(tool));
    if (type != "function") {
      log_ignored(type.get<std::string>());
      continue;
    }
    Json function = Json::object();
    for (const char* name : {"name", "description", "parameters"})
      if (const Json* value = find_field(tool, name)) function[name] = *value;
    if (tool["strict"] == Json(true)) function["strict"] = true;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return functions;
}

// -- Other fields

void refuse_unsupported_responses(const Json& body) {
  refuse_unsupported_fields(body, UnsupportedName::kResponses);
  if (bool_field(body, "background", false)) refuse_field("background", "true is not supported");
}

/// The response_format that `text.format` means. The members of a schema stand beside the type
/// here.
Json response_format_of(const Json& body) {
  const Json& format = body["text"]["format"];
  if (format["type"] != "json_schema") return format;
  return {{"type", "json_schema"}, {"json_schema", format}};
}

bool asks_for_logprobs(const Json& body) {
  const Json* include = find_field(body, "include");
  return include != nullptr && include->is_array() &&
         std::ranges::count(*include, Json("message.output_text.logprobs")) > 0;
}

/// The fields that a response repeats, with their defaults.
Json echo_of(const Json& body, const SamplingParams& params) {
  Json echo = Json::object();
  const auto add = [&](const char* name, const Json& absent) {
    const Json* value = find_field(body, name);
    echo[name] = value != nullptr ? *value : absent;
  };
  add("instructions", nullptr);
  add("metadata", Json::object());
  add("max_output_tokens", nullptr);
  add("max_tool_calls", nullptr);
  add("parallel_tool_calls", true);
  add("previous_response_id", nullptr);
  add("reasoning", Json({{"effort", nullptr}, {"summary", nullptr}}));
  add("store", true);
  add("text", Json({{"format", {{"type", "text"}}}}));
  add("tool_choice", "auto");
  add("tools", Json::array());
  add("top_logprobs", 0);
  add("truncation", "disabled");
  add("background", false);
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key", "service_tier"})
    if (const Json* value = find_field(body, name)) echo[name] = *value;
  echo["temperature"] = params.temperature;
  echo["top_p"] = params.top_p;
  return echo;
}

}  // namespace

ResponsesRequest responses_request(Json body, const SamplingParams& defaults,
                                   ResponseStore& store) {
  check_is_object(body);
  refuse_unsupported_responses(body);
  ResponsesRequest request;
  request.store = bool_field(body, "store", true);
  Json input = input_of(body);
  resolve_references(input, store);
  if (const std::string id = name_field(body, "previous_response_id"); !id.empty()) {
    request.previous = store.find(id);
    if (request.previous == nullptr)
      throw ApiError(404,
                     fmt::format("the previous response {} is not stored here; send its items, too",
                                 printable(id)),
                     "previous_response_id", "previous_response_not_found");
  }

  Json chat = Json::object();
  for (const char* name : kResponsesSame)
    if (const Json* value = find_field(body, name)) chat[name] = *value;
  for (const auto& [name, value] : body.items())
    if ((is_sampling_field(name) && name != "n" && name != "max_tokens" && name != "logprobs") ||
        (is_form_field(name, /*in_body=*/false) && name != "response_format"))
      chat[name] = value;
  if (Json format = response_format_of(body); !format.is_null())
    chat["response_format"] = std::move(format);
  if (const Json* most = find_field(body, "max_output_tokens")) chat["max_tokens"] = *most;
  if (asks_for_logprobs(body)) {
    chat["logprobs"] = true;
    if (const Json* top = find_field(body, "top_logprobs")) chat["top_logprobs"] = *top;
  }
  if (const Json* tools = find_field(body, "tools")) chat["tools"] = responses_tools(*tools);
  if (const Json* choice = find_field(body, "tool_choice")) chat["tool_choice"] = *choice;

  Json messages = Json::array();
  if (const Json* text = find_field(body, "instructions"))
    messages.push_back({{"role", "system"}, {"content", *text}});
  Messages to(messages);
  if (request.previous != nullptr)
    for (const Json& item : ResponseStore::items_of(*request.previous))
      to.add(item, "the previous response");
  for (size_t i = 0; i < input.size(); ++i) to.add(input[i], fmt::format("input[{}]", i));
  request.num_input_items = input.size();
  if (request.store && store.is_on()) request.input = dump_json(input);
  chat["messages"] = std::move(messages);
  request.chat = with_names_of_client({{"max_tokens", "max_output_tokens"},
                                       {"messages", "input"},
                                       {"response_format", "text.format"}},
                                      [&] { return chat_request(std::move(chat), defaults); });
  if (request.chat.form_field == "response_format") request.chat.form_field = "text.format";
  request.echo = dump_json(echo_of(body, request.chat.params));
  return request;
}

}  // namespace nanovllm::server
