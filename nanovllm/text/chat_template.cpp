#include "nanovllm/text/chat_template.h"

#include <filesystem>
#include <mutex>
#include <string_view>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/text/jinja/interpreter.h"
#include "nanovllm/text/messages.h"
#include "nanovllm/text/template_traits.h"

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

/// Cuts a prompt behind the content of its last message, so that the answer continues it.
void cut_behind(const Json& messages, std::string& prompt) {
  // A template that reads no texts gets them as lists of one part.
  Json content = messages.back().value("content", Json());
  if (content.is_array() && content.size() == 1) content = Json(content[0]["text"]);
  require(content.is_string(),
          "continue_final_message needs a text as the content of the last message");
  const std::string_view text = content.string();
  const size_t end = text.find_last_not_of(" \t\r\n") + 1;  // templates trim
  const size_t at = prompt.rfind(text.substr(0, end));
  require(end > 0 && at != std::string::npos,
          "continue_final_message needs a last message whose content is in the prompt");
  prompt.resize(at + (prompt.compare(at, text.size(), text) == 0 ? text.size() : end));
}

}  // namespace

struct ChatTemplate::Source {
  Source(std::string_view text, std::string where) : parsed(text, std::move(where)) {}
  jinja::Template parsed;
  mutable std::once_flag probed;
  mutable TemplateTraits traits;  // valid once `probed` is set
};

ChatTemplate::ChatTemplate(const std::string& source, Json special_tokens, std::string where)
    : ChatTemplate(std::make_shared<const Source>(source, std::move(where)),
                   std::move(special_tokens)) {}

ChatTemplate::ChatTemplate(std::shared_ptr<const Source> source, Json special_tokens)
    : template_(std::move(source)), special_tokens_(std::move(special_tokens)) {}

std::optional<ChatTemplate> ChatTemplate::load(const std::string& folder,
                                               const std::string& template_file) {
  const fs::path root(folder);
  const Json config = read_object(root / "tokenizer_config.json");
  Json tokens = Json::object();
  add_special_tokens(config, tokens);
  // Without this key the folder was written by an older version of transformers, which wrote the
  // tokens to a separate file, and that file counts.
  if (!config.contains("added_tokens_decoder"))
    add_special_tokens(read_object(root / "special_tokens_map.json"), tokens);
  const auto parse = [&](std::string_view source, const std::string& where) {
    try {
      return std::make_shared<const Source>(source, where);
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
  if (found->is_string()) return ChatTemplate(parse(found->string(), where), tokens);

  ChatTemplate loaded(nullptr, tokens);
  for (const Json& entry : found->is_array() ? *found : Json::array()) {
    require(entry.is_object() && entry.contains("template") && entry["template"].is_string(),
            "{}: {} contains an entry without a string 'template'", folder, where);
    const Json name = entry.value("name", Json());
    if (name != "default" && name != "tool_use") continue;
    auto& slot = name == "default" ? loaded.template_ : loaded.tool_template_;
    slot = parse(entry["template"].string(), fmt::format("{} {}", where, name.dump()));
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

bool ChatTemplate::mentions(std::string_view text) const {
  const auto has = [text](const std::shared_ptr<const Source>& source) {
    return source != nullptr && find_bytes(source->parsed.source(), text) != std::string::npos;
  };
  return has(template_) || has(tool_template_);
}

const ChatTemplate::Source& ChatTemplate::source_for(const Json& context) const {
  require(error_.empty(), "{}", error_);
  require(context.is_object(), "a chat template's context is not a JSON object");
  const auto tools = context.find("tools");
  const bool has_tools = tools != context.end() && !tools->is_null();
  return has_tools && tool_template_ != nullptr ? *tool_template_ : *template_;
}

std::string ChatTemplate::render(const Json& context, std::stop_token stop) const {
  return jinja::Interpreter(source_for(context).parsed, jinja::Budget(std::move(stop)))
      .render(context, special_tokens_);
}

std::string ChatTemplate::prompt(Json context, const std::stop_token& stop) const {
  const Source& source = source_for(context);
  const auto messages = context.find("messages");
  if (messages == context.end() || !messages->is_array() || messages->empty())
    return render(context, stop);
  const TemplateTraits::Render probe = [&](const Json& conversation) {
    std::optional<std::string> prompt;
    try {
      prompt = jinja::Interpreter(source.parsed).render(conversation, special_tokens_);
    } catch (const UserError&) {  // the template does not take such messages
    }
    return prompt;
  };
  std::call_once(source.probed,
                 [&] { source.traits = TemplateTraits::of(source.parsed.source(), probe); });
  normalize_messages(*messages, source.traits, [&](const std::string& role) {
    return template_has_role(role, source.traits, probe);
  });
  if (context.value("continue_final_message", Json()) != true) return render(context, stop);
  const Json last = Json::array({messages->back()});
  context["add_generation_prompt"] = false;
  std::string text = render(context, stop);
  cut_behind(last, text);
  return text;
}

}  // namespace nanovllm
