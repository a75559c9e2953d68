#include "nanovllm/server/anthropic/request.h"

#include <string>
#include <string_view>
#include <utility>

#include "nanovllm/params/sampling_json.h"
#include "nanovllm/server/openai/request_fields.h"

namespace nanovllm::server {

namespace {

/// Whether a field means the same here as in a chat completion: what both APIs have, and vLLM's
/// sampling fields, except those for which a response of this API has no place.
bool is_same_in_both(std::string_view name) {
  for (const char* other : {"n", "stop", "logprobs", "prompt_logprobs", "detokenize"})
    if (name == other) return false;
  for (const char* same : {"model", "stream", "chat_template_kwargs", "cache_salt", "priority"})
    if (name == same) return true;
  return is_sampling_field(name);
}

/// A list of blocks, each of which has a type. A text counts as a block of it.
Json blocks_of(const Json& content, const std::string& where) {
  if (content.is_string()) return {{{"type", "text"}, {"text", content}}};
  if (!content.is_array()) throw ApiError(400, where + " must be a text or a list", "messages");
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& block = content[i];
    if (!block.is_object() || !block.contains("type") || !block["type"].is_string())
      throw ApiError(400, fmt::format("{}[{}] must be an object with a type", where, i),
                     "messages");
  }
  return content;
}

const std::string& text_member(const Json& block, const char* name, const std::string& where) {
  const Json* text = find_field(block, name);
  if (text == nullptr || !text->is_string())
    throw ApiError(400, fmt::format("{}: {} must be a text", where, name), "messages");
  return text->string();
}

/// A content in OpenAI's form: a text if it is one, otherwise its blocks, which
/// normalize_messages() makes texts.
Json content_of(const Json& content, const std::string& where) {
  Json blocks = blocks_of(content, where);
  if (blocks.size() != 1 || blocks[0]["type"] != "text") return blocks;
  return text_member(blocks[0], "text", where);
}

/// Results of tools are messages of their own in OpenAI's form; texts between them stay in order.
void add_user_message(Json& messages, const Json& content, const std::string& where) {
  Json blocks = Json::array();
  const auto add_blocks = [&] {
    if (!blocks.empty())
      messages.push_back({{"role", "user"}, {"content", content_of(blocks, where)}});
    blocks = Json::array();
  };
  for (const Json& block : blocks_of(content, where)) {
    if (block["type"] != "tool_result") {
      blocks.push_back(block);
      continue;
    }
    add_blocks();
    const Json* result = find_field(block, "content");
    messages.push_back(
        {{"role", "tool"},
         {"tool_call_id", text_member(block, "tool_use_id", where)},
         {"content", result == nullptr ? Json("") : content_of(*result, where + ": tool_result")}});
  }
  add_blocks();
}

void add_assistant_message(Json& messages, const Json& content, const std::string& where) {
  std::string text, thoughts;
  Json blocks = Json::array();  // with the texts, if some are neither texts nor thoughts nor calls
  Json calls = Json::array();
  bool has_others = false;
  for (const Json& block : blocks_of(content, where)) {
    const Json& type = block["type"];
    if (type == "thinking") {
      thoughts += text_member(block, "thinking", where);
    } else if (type == "tool_use") {
      const Json* input = find_field(block, "input");
      calls.push_back({{"id", text_member(block, "id", where)},
                       {"type", "function"},
                       {"function",
                        {{"name", text_member(block, "name", where)},
                         {"arguments", input == nullptr ? Json::object() : *input}}}});
    } else if (type != "redacted_thinking") {
      if (type == "text") text += text_member(block, "text", where);
      has_others = has_others || type != "text";
      blocks.push_back(block);
    }
  }
  Json message = {{"role", "assistant"}, {"content", has_others ? std::move(blocks) : Json(text)}};
  if (!thoughts.empty()) message["reasoning_content"] = thoughts;
  if (!calls.empty()) message["tool_calls"] = std::move(calls);
  messages.push_back(std::move(message));
}

Json messages_of(const Json& body) {
  Json messages = Json::array();
  if (const Json* system = find_field(body, "system"))
    messages.push_back({{"role", "system"}, {"content", content_of(*system, "system")}});
  const Json* given = find_field(body, "messages");
  if (given == nullptr || !given->is_array() || given->empty())
    refuse_field("messages", "must be a list of at least one message");
  for (size_t i = 0; i < given->size(); ++i) {
    const Json& message = (*given)[i];
    const std::string where = fmt::format("messages[{}]", i);
    const bool is_complete = message.is_object() && message.contains("role") &&
                             message["role"].is_string() && message.contains("content");
    if (!is_complete)
      throw ApiError(400, where + " must be an object with a role and a content", "messages");
    const Json& role = message["role"];
    const std::string content = where + ".content";
    if (role == "user") add_user_message(messages, message["content"], content);
    else if (role == "assistant") add_assistant_message(messages, message["content"], content);
    else  // "system", or a role of which only the template can tell whether it is one
      messages.push_back({{"role", role}, {"content", content_of(message["content"], content)}});
  }
  return messages;
}

Json messages_tools(const Json& tools) {
  if (!tools.is_array()) refuse_field("tools", "must be a list, not {}", printable(tools));
  Json functions = Json::array();
  for (const Json& tool : tools) {
    if (!tool.is_object() || !tool.contains("name") || !tool["name"].is_string())
      refuse_field("tools", "contains a tool without a name");
    // Anthropic's own tools have names that its models know, and no schema.
    const Json* type = find_field(tool, "type");
    const Json* schema = find_field(tool, "input_schema");
    if (type != nullptr && *type != "custom" && schema == nullptr)
      refuse_field("tools", "contains the type {}, which is not supported; \"custom\" is",
                   printable(*type));
    Json function = {{"name", tool["name"]}};
    if (const Json* text = find_field(tool, "description")) function["description"] = *text;
    function["parameters"] = schema == nullptr ? Json::object() : *schema;
    if (tool["strict"] == Json(true)) function["strict"] = true;
    functions.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return functions;
}

void read_messages_tool_choice(const Json& choice, Json& chat) {
  const Json& type = choice["type"];
  Json& chosen = chat["tool_choice"];
  if (type == "auto" || type == "none") chosen = type;
  else if (type == "any") chosen = "required";
  else if (type == "tool" && choice["name"].is_string())
    chosen = {{"type", "function"}, {"function", {{"name", choice["name"]}}}};
  else
    refuse_field("tool_choice",
                 "{} is not supported; its type must be \"auto\", \"any\", \"tool\" with a name, "
                 "or \"none\"",
                 printable(choice));
  chat["parallel_tool_calls"] = !bool_field(choice, "disable_parallel_tool_use", false);
}

/// The field that gives the answer a form: output_format or, in newer clients,
/// output_config.format. Empty if there is none.
std::string read_output_format(const Json& body, Json& chat) {
  const Json& older = body["output_format"];
  const Json& format = older.is_null() ? body["output_config"]["format"] : older;
  if (format.is_null()) return {};
  const std::string name = older.is_null() ? "output_config.format" : "output_format";
  if (format["type"] != "json_schema" || !format["schema"].is_object())
    refuse_field(name, "is {}; it must have the type \"json_schema\" and a schema",
                 printable(format));
  chat["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"schema", format["schema"]}}}};
  return name;
}

void read_thinking(const Json& thinking, Json& chat) {
  const Json* type = thinking.is_object() ? find_field(thinking, "type") : nullptr;
  if (type != nullptr && *type == "enabled") chat["enable_thinking"] = true;
  else if (type != nullptr && *type == "disabled") chat["enable_thinking"] = false;
  else if (type == nullptr)
    refuse_field("thinking", "must be an object with a type, not {}", printable(thinking));
}

}  // namespace

ChatRequest messages_request(const Json& body, const SamplingParams& defaults,
                             MessagesRoute route) {
  check_is_object(body);
  refuse_unsupported_fields(body, UnsupportedName::kMessages);
  Json chat = Json::object();
  for (const auto& [name, value] : body.items())
    if (is_same_in_both(name) && !value.is_null()) chat[name] = value;
  if (route == MessagesRoute::kMessages && !chat.contains("max_tokens"))
    refuse_field("max_tokens", "is missing");
  if (const Json* stop = find_field(body, "stop_sequences")) {
    if (!stop->is_array()) refuse_field("stop_sequences", "must be a list of texts");
    chat["stop"] = *stop;
  }
  if (const Json* tools = find_field(body, "tools")) chat["tools"] = messages_tools(*tools);
  if (const Json* choice = find_field(body, "tool_choice"))
    read_messages_tool_choice(*choice, chat);
  if (const Json* thinking = find_field(body, "thinking")) read_thinking(*thinking, chat);
  const std::string format = read_output_format(body, chat);
  chat["messages"] = messages_of(body);
  ChatRequest request = with_names_of_client(
      {{"stop", "stop_sequences"}}, [&] { return chat_request(std::move(chat), defaults); });
  if (!format.empty()) request.form_field = format;
  return request;
}

}  // namespace nanovllm::server
