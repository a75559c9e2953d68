#include "nanovllm/text/chat_template.h"

#include <filesystem>

#include "nanovllm/base/check.h"
#include "nanovllm/base/mapped_file.h"
#include "nanovllm/text/jinja_interpreter.h"

namespace nanovllm {

namespace {

namespace fs = std::filesystem;

/// The tokens that transformers passes to a template, as texts.
Json special_tokens_of(const Json& config) {
  Json tokens = Json::object();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const auto it = config.find(name);
    if (it == config.end()) continue;
    if (it->is_string()) tokens[name] = *it;
    else if (it->is_object() && it->contains("content")) tokens[name] = it->at("content");
  }
  return tokens;
}

/// Bytes of the texts in it and a few for everything else.
size_t size_of(const Json& json) {
  size_t size = 16;
  if (json.is_string()) size += json.get_ref<const std::string&>().size();
  if (json.is_structured())
    for (const auto& [key, value] : json.items()) size += key.size() + size_of(value);
  return size;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, Json special_tokens, std::string where)
    : template_(std::make_shared<const jinja::Template>(source, std::move(where))),
      special_tokens_(std::move(special_tokens)) {}

std::optional<ChatTemplate> ChatTemplate::load(const std::string& folder) {
  const fs::path root(folder);
  const std::string config_path = root / "tokenizer_config.json";
  Json config = Json::object();
  if (fs::exists(config_path)) config = parse_json(read_file(config_path), config_path);
  require(config.is_object(), "{}: not a JSON object", config_path);
  const Json tokens = special_tokens_of(config);

  if (const std::string path = root / "chat_template.jinja"; fs::exists(path)) {
    ChatTemplate loaded(read_file(path), tokens, path);
    if (const std::string more = root / "additional_chat_templates" / "tool_use.jinja";
        fs::exists(more))
      loaded.tool_template_ = std::make_shared<const jinja::Template>(read_file(more), more);
    return loaded;
  }
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  const std::string where = config_path + "'s chat_template";
  if (found->is_string()) return ChatTemplate(found->get<std::string>(), tokens, where);

  const auto named = [&](const char* name) -> std::shared_ptr<const jinja::Template> {
    for (const Json& entry : *found)
      if (entry.is_object() && entry.value("name", Json()) == name && entry.contains("template") &&
          entry["template"].is_string())
        return std::make_shared<const jinja::Template>(
            entry["template"].get_ref<const std::string&>(), fmt::format("{} '{}'", where, name));
    return nullptr;
  };
  require(found->is_array() && named("default") != nullptr,
          "{}: neither a text nor a list of {{name, template}} with one named 'default'", where);
  ChatTemplate loaded("", tokens, where);
  loaded.template_ = named("default");
  loaded.tool_template_ = named("tool_use");
  return loaded;
}

std::string ChatTemplate::render(const Json& context) const {
  require(context.is_object(), "a chat template's context is not a JSON object");
  const auto tools = context.find("tools");
  const bool has_tools = tools != context.end() && !tools->is_null();
  const jinja::Template& chosen =
      has_tools && tool_template_ != nullptr ? *tool_template_ : *template_;
  jinja::Budget budget(size_of(context));
  return jinja::Interpreter(chosen, budget).render(context, special_tokens_);
}

}  // namespace nanovllm
