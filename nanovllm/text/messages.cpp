#include "nanovllm/text/messages.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/parts.h"

namespace nanovllm {

namespace {

bool is_empty(const Json& content) {
  if (content.is_string()) return content.string().empty();
  return content.is_null() || (content.is_array() && content.empty());
}

const std::string& role_of(const Json& message) { return message["role"].string(); }

/// Makes each part of a message {"type": "text", "text": ...}. Thoughts among them are moved to the
/// message's own field.
void make_text_parts(Json& message) {
  Json parts = Json::array();
  std::string thoughts;
  for (const Json& part : message["content"]) {
    const auto media = media_of(part);
    require(!media,
            "has a part of the type {}, which is not supported: this model reads only text"
            " (--allow-dropped-media replaces such parts by a text that says so)",
            media ? dump_json(part["type"]) : "");
    std::string text = text_of_part(part);
    if (is_thought(part) && role_of(message) == "assistant") thoughts += text;
    else parts.push_back({{"type", "text"}, {"text", std::move(text)}});
  }
  message["content"] = std::move(parts);
  if (!thoughts.empty()) message["reasoning_content"] = std::move(thoughts);
}

std::string joined(const Json& parts) {
  std::string text;
  for (bool first = true; const Json& part : parts) {
    if (!std::exchange(first, false)) text += '\n';
    text += part["text"].string();
  }
  return text;
}

std::string text_of(const Json& content) {
  return content.is_array() ? joined(content) : content.get<std::string>();
}

/// Adds a text before or behind the text of a message, as a paragraph of its own.
void add_text(Json& message, const std::string& text, bool before) {
  if (text.empty()) return;
  Json& content = message["content"];
  if (is_empty(content)) {
    content = text;
  } else if (content.is_array()) {
    const Json part = {{"type", "text"}, {"text", text}};
    content.insert(before ? content.begin() : content.end(), part);
  } else {
    const std::string old = content.get<std::string>();
    content = before ? text + "\n\n" + old : old + "\n\n" + text;
  }
}

/// Parses a text of arguments. Returns false if it is not a JSON object.
bool parse_arguments(const std::string& text, Json& object) {
  try {
    object = text.find_first_not_of(" \t\r\n") == std::string::npos ? Json::object()
                                                                    : parse_json(text, "arguments");
  } catch (const UserError&) {  // an answer that was cut off, for example
    return false;
  }
  return object.is_object();
}

void convert_arguments(Json& arguments, const TemplateTraits& traits) {
  if (arguments.is_null()) arguments = Json::object();
  if (arguments.is_string() && traits.takes_objects) {
    Json object;
    const auto& text = arguments.string();
    if (parse_arguments(text, object)) arguments = std::move(object);
    else if (!traits.takes_texts) arguments = Json({{"arguments", text}});
  } else if (!arguments.is_string() && !traits.takes_objects) {
    arguments = dump_json(arguments);
  }
}

/// Gives calls the form {"function": {"name", "arguments"}}. Removes null and lists without a call.
void normalize_calls(Json& message, const TemplateTraits& traits) {
  // "function_call" is the older form of a single call.
  if (message.contains("function_call") && message["function_call"].is_object() &&
      !message.contains("tool_calls"))
    message["tool_calls"] = Json::array(
        {{{"id", "call00001"}, {"type", "function"}, {"function", message["function_call"]}}});
  message.erase("function_call");
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  if (!calls->is_array() || calls->empty()) {
    require(calls->is_array() || calls->is_null(), "must have tool_calls that are a list");
    message.erase("tool_calls");
    return;
  }
  for (Json& call : *calls) {
    require(call.is_object() && call.contains("function") && call["function"].is_object() &&
                call["function"].contains("name") && call["function"]["name"].is_string(),
            "must have tool_calls that have a function with a name");
    convert_arguments(call["function"]["arguments"], traits);
  }
}

/// Writes calls as text, in the form of Hermes, for a template that does not read calls.
void write_calls(Json& message) {
  const Json calls = std::move(message["tool_calls"]);  // a new member moves the others
  message.erase("tool_calls");
  for (const Json& call : calls) {
    Json arguments = call["function"]["arguments"];
    if (arguments.is_string()) parse_arguments(call["function"]["arguments"].string(), arguments);
    const Json shown = {{"name", call["function"]["name"]}, {"arguments", arguments}};
    add_text(message, "<tool_call>\n" + dump_json(shown) + "\n</tool_call>", /*before=*/false);
  }
}

void normalize_thoughts(Json& message) {
  for (const auto& [from, to] :
       {std::pair("reasoning", "reasoning_content"), std::pair("reasoning_content", "reasoning")})
    if (message.contains(from) && message[from].is_string() &&
        (!message.contains(to) || message[to].is_null()))
      message[to] = Json(message[from]);
}

void normalize(Json& message, const TemplateTraits& traits) {
  if (role_of(message) == "developer" && !traits.developer) message["role"] = "system";
  if (role_of(message) == "function") message["role"] = "tool";
  normalize_calls(message, traits);
  if (message.contains("tool_calls") && !traits.calls) write_calls(message);
  if (message.contains("content") && message["content"].is_array()) {
    make_text_parts(message);
    const auto known = traits.reads_parts.find(role_of(message));
    const bool reads_parts = known == traits.reads_parts.end() ? !traits.texts : known->second;
    if (!reads_parts || message["content"].empty()) message["content"] = joined(message["content"]);
  }
  normalize_thoughts(message);
  if (message.contains("content") && !is_empty(message["content"])) return;
  const std::optional<Json> none = message.contains("tool_calls") ? traits.no_content : "";
  if (!none) message.erase("content");
  else message["content"] = *none;
}

/// Divides answers with a text and calls into two messages, for a template that would leave out the
/// text.
void split_call_texts(Json& messages) {
  Json split = Json::array();
  for (Json& message : messages) {
    if (message.contains("tool_calls") && !message["tool_calls"].empty() &&
        message.contains("content") && !is_empty(message["content"])) {
      split.push_back({{"role", "assistant"}, {"content", std::move(message["content"])}});
      message["content"] = "";
    }
    split.push_back(std::move(message));
  }
  messages = std::move(split);
}

/// Moves the texts of system messages that the template would leave out to other messages.
void merge_systems(Json& messages, const TemplateTraits& traits) {
  Json merged = Json::array();
  std::string for_next;  // texts of system messages without a user's message before them
  const auto is_user = [](const Json& message) { return role_of(message) == "user"; };
  // Some templates do not take a user's message behind the result of a tool.
  const auto may_end_with = [&](const Json& message) {
    return is_user(message) || role_of(message) == "tool";
  };
  bool at_start = true;
  for (Json& message : messages) {
    if (role_of(message) != "system") {
      if (!for_next.empty() && !is_user(message))
        merged.push_back({{"role", "user"}, {"content", std::exchange(for_next, {})}});
      add_text(message, std::exchange(for_next, {}), /*before=*/true);
      merged.push_back(std::move(message));
      at_start = false;
      continue;
    }
    const bool is_first = merged.empty();
    const bool is_shown =
        at_start ? traits.system && (is_first || traits.two_systems) : traits.later_system;
    if (is_shown) merged.push_back(std::move(message));
    else if (at_start && traits.system) add_text(merged.back(), text_of(message["content"]), false);
    else if (!merged.empty() && may_end_with(merged.back()))
      add_text(merged.back(), text_of(message["content"]), /*before=*/false);
    else for_next += (for_next.empty() ? "" : "\n\n") + text_of(message["content"]);
  }
  if (!for_next.empty()) merged.push_back({{"role", "user"}, {"content", for_next}});
  messages = std::move(merged);
}

/// Makes the results of tools messages of the user, for a template that does not read them.
void merge_results(Json& messages) {
  Json merged = Json::array();
  bool is_result = false;  // whether the last message has results only
  for (Json& message : messages) {
    const bool was_result = std::exchange(is_result, role_of(message) == "tool");
    if (!is_result) {
      if (was_result && role_of(message) == "user")
        add_text(merged.back(), text_of(message["content"]), /*before=*/false);
      else merged.push_back(std::move(message));
      continue;
    }
    const std::string text =
        "<tool_response>\n" + text_of(message["content"]) + "\n</tool_response>";
    if (was_result) add_text(merged.back(), text, /*before=*/false);
    else merged.push_back({{"role", "user"}, {"content", text}});
  }
  messages = std::move(merged);
}

}  // namespace

void check_messages(const Json& messages) {
  require(!messages.is_null(), "messages is missing");
  require(messages.is_array() && !messages.empty(),
          "messages must be a list of at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    require(message.is_object(), "messages[{}] must be an object with a role and a content", i);
    require(message["role"].is_string(), "messages[{}] must have a role, a text", i);
    const Json& content = message["content"];
    require(content.is_null() || content.is_string() || content.is_array(),
            "messages[{}] must have a content that is a text or a list of parts", i);
  }
}

void normalize_messages(Json& messages, const TemplateTraits& traits,
                        const std::function<bool(const std::string& role)>& has_role) {
  constexpr std::string_view kKnown[] = {"system", "developer", "user", "assistant", "tool"};
  check_messages(messages);
  if (traits.calls && !traits.call_texts && traits.two_answers) split_call_texts(messages);
  for (size_t i = 0; i < messages.size(); ++i) {
    try {
      normalize(messages[i], traits);
    } catch (const UserError& e) {
      fail("messages[{}] {}", i, e.what());
    }
    const std::string& role = role_of(messages[i]);
    if (std::ranges::find(kKnown, role) == std::end(kKnown))
      require(has_role(role),
              "messages[{}] has the role {}, which is not supported: the model's chat template "
              "leaves such messages out",
              i, dump_json(messages[i]["role"]));
  }
  if (!traits.tool) merge_results(messages);
  if (!traits.system || !traits.two_systems || !traits.later_system)
    merge_systems(messages, traits);
  if (traits.texts) return;
  for (Json& message : messages)
    if (message.contains("content") && message["content"].is_string())
      message["content"] = Json::array({{{"type", "text"}, {"text", message["content"]}}});
}

}  // namespace nanovllm
