#include "nanovllm/text/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/text/jinja/interpreter.h"

namespace nanovllm {

namespace {

namespace fs = std::filesystem;

/// The object in a file; empty if there is no such file.
Json read_object(const std::string& path) {
  const auto text = read_file_if_there(path, kMaxTokenizerConfigBytes);
  Json object = text ? parse_json(*text, path) : Json::object();
  require(object.is_object(), "{}: not a JSON object", path);
  return object;
}

/// Adds the tokens that transformers passes to a template, as texts.
void add_special_tokens(const Json& config, Json& tokens) {
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto it = config.find(name);
    if (it == config.end()) continue;
    if (it->is_string()) tokens[name] = *it;
    else if (it->is_object() && it->contains("content")) tokens[name] = it->at("content");
  }
}

/// The parts of a message as {"type": "text", "text": ...}.
Json text_parts(const Json& content) {
  Json parts = Json::array();
  for (const Json& part : content) {
    if (part.is_string()) {
      parts.push_back({{"type", "text"}, {"text", part}});
      continue;
    }
    require(part.is_object() && part.contains("type") && part["type"].is_string(),
            "a part of a message's content must be a string or an object with a type");
    require(part["type"] == "text",
            "a message's content has a part of type {}, but the model reads only text",
            dump_json(part["type"]));
    require(part.contains("text") && part["text"].is_string(),
            "a text part of a message's content must have a string in 'text'");
    parts.push_back(part);
  }
  return parts;
}

std::string joined(const Json& parts) {
  std::string text;
  for (bool first = true; const Json& part : parts) {
    if (!std::exchange(first, false)) text += '\n';
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

/// A conversation that a template takes, with `content` in a message of the role.
Json conversation_with(const std::string& role, const Json& content) {
  const Json user = {{"role", "user"}, {"content", "x"}};
  const Json message = {
      {"role", role}, {"name", "f"}, {"tool_call_id", "call00001"}, {"content", content}};
  const Json call = {{"id", "call00001"},
                     {"type", "function"},
                     {"function", {{"name", "f"}, {"arguments", Json::object()}}}};
  if (role == "system" || role == "developer") return Json::array({message, user});
  if (role == "assistant") return Json::array({user, message});
  if (role != "tool") return Json::array({message});
  return Json::array({user,
                      {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}},
                      message});
}

}  // namespace

ChatTemplate::ChatTemplate(const std::string& source, Json special_tokens, std::string where)
    : ChatTemplate(std::make_shared<const jinja::Template>(source, std::move(where)),
                   std::move(special_tokens)) {}

ChatTemplate::ChatTemplate(std::shared_ptr<const jinja::Template> parsed, Json special_tokens)
    : template_(std::move(parsed)), special_tokens_(std::move(special_tokens)) {}

std::optional<ChatTemplate> ChatTemplate::load(const std::string& folder,
                                               const std::string& template_file) {
  const fs::path root(folder);
  const Json config = read_object(root / "tokenizer_config.json");
  Json tokens = Json::object();
  add_special_tokens(config, tokens);
  // Without this key the folder is of an older version of transformers, which wrote the tokens to a
  // file of their own, and that file counts.
  if (!config.contains("added_tokens_decoder"))
    add_special_tokens(read_object(root / "special_tokens_map.json"), tokens);
  const auto parse = [&](std::string_view source, const std::string& where) {
    try {
      return std::make_shared<const jinja::Template>(source, where);
    } catch (const UserError& error) {
      // Only the person who starts the program may see the folder: an error in a rendering may go
      // to a client.
      fail("{}: {}", template_file.empty() ? folder : template_file, error.what());
    }
  };

  if (!template_file.empty())
    return ChatTemplate(parse(read_file(template_file, kMaxTemplateBytes), "the chat template"),
                        tokens);
  if (const auto file = read_file_if_there(root / "chat_template.jinja", kMaxTemplateBytes)) {
    ChatTemplate loaded(parse(*file, "chat_template.jinja"), tokens);
    const auto more = read_file_if_there(root / "additional_chat_templates" / "tool_use.jinja",
                                         kMaxTemplateBytes);
    if (more) loaded.tool_template_ = parse(*more, "tool_use.jinja");
    return loaded;
  }
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  const std::string where = "tokenizer_config.json's chat_template";
  if (found->is_string())
    return ChatTemplate(parse(found->get_ref<const std::string&>(), where), tokens);

  ChatTemplate loaded(nullptr, tokens);
  for (const Json& entry : found->is_array() ? *found : Json::array()) {
    require(entry.is_object() && entry.contains("template") && entry["template"].is_string(),
            "{}: {} contains an entry without a string 'template'", folder, where);
    const Json name = entry.value("name", Json());
    if (name != "default" && name != "tool_use") continue;
    auto& slot = name == "default" ? loaded.template_ : loaded.tool_template_;
    slot = parse(entry["template"].get_ref<const std::string&>(),
                 fmt::format("{} {}", where, name.dump()));
  }
  require(loaded.template_ != nullptr,
          "{}: {} is neither a string nor a list of {{name, template}} with one named 'default'",
          folder, where);
  return loaded;
}

ChatTemplate ChatTemplate::load_for_later(const std::string& folder, const std::string& hint) {
  ChatTemplate none(nullptr, Json::object());
  try {
    if (std::optional<ChatTemplate> loaded = load(folder)) return *std::move(loaded);
    none.error_ = "the model has no chat template" + hint;
  } catch (const UserError& e) {
    none.error_ = e.what();
  }
  return none;
}

std::string ChatTemplate::render(const Json& context) const {
  require(error_.empty(), "{}", error_);
  require(context.is_object(), "a chat template's context is not a JSON object");
  const auto tools = context.find("tools");
  const bool has_tools = tools != context.end() && !tools->is_null();
  const jinja::Template& chosen =
      has_tools && tool_template_ != nullptr ? *tool_template_ : *template_;
  return jinja::Interpreter(chosen).render(context, special_tokens_);
}

std::string ChatTemplate::prompt(const Json& context) const {
  const auto has_parts = [](const Json& message) {
    return message.is_object() && message.contains("content") && message["content"].is_array();
  };
  const auto messages = context.find("messages");
  if (messages == context.end() || !messages->is_array() ||
      std::none_of(messages->begin(), messages->end(), has_parts))
    return render(context);
  Json changed = context;
  std::map<std::string, bool> reads_parts;  // by role
  for (Json& message : changed["messages"]) {
    if (!has_parts(message)) continue;
    const Json parts = text_parts(message["content"]);
    std::string role = message.contains("role") && message["role"].is_string()
                           ? message["role"].get<std::string>()
                           : "user";
    // Templates that know more roles treat them as one of these.
    constexpr std::string_view kRoles[] = {"system", "developer", "assistant", "tool"};
    if (std::ranges::find(kRoles, role) == std::end(kRoles)) role = "user";
    const auto [known, is_new] = reads_parts.try_emplace(role);
    if (is_new) known->second = this->reads_parts(role, context);
    message["content"] = known->second ? parts : Json(joined(parts));
  }
  return render(changed);
}

/// Whether the template reads a list of parts in a message of the role. It renders a part whose
/// text must be in the prompt and whose other field must not: a template that does not read parts
/// prints the whole list.
bool ChatTemplate::reads_parts(const std::string& role, Json context) const {
  const Json part = {{"type", "text"}, {"text", "wordofthepart"}, {"otherfieldofthepart", "y"}};
  context["messages"] = conversation_with(role, Json::array({part}));
  try {
    const std::string prompt = render(context);
    return prompt.find("wordofthepart") != std::string::npos &&
           prompt.find("otherfieldofthepart") == std::string::npos;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace nanovllm
