#include "apps/chat/conversation.h"

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

namespace {

constexpr size_t kMaxConversationBytes = size_t{1} << 26;  // many times the longest context

}  // namespace

Json message_of(const std::string& role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

void Conversation::begin(const std::string& system) {
  messages_ = Json::array();
  if (!system.empty()) messages_.push_back(message_of("system", system));
}

std::string Conversation::system() const {
  const bool has_system = !messages_.empty() && messages_[0]["role"] == "system";
  return has_system ? messages_[0]["content"].get<std::string>() : "";
}

void Conversation::save(const std::string& path) {
  require(path == file_ || !path_exists(path),
          "{} exists already; give another name, or remove it first", path);
  replace_file(path, dump_json({{"messages", messages_}}, /*indent=*/2) + "\n");
  file_ = path;
}

void Conversation::load(const std::string& path) {
  const Json json = parse_json(read_file(path, kMaxConversationBytes), path);
  require(json.is_object() && json.contains("messages") && json["messages"].is_array(),
          "{}: must be an object with a list of messages, as /save writes it", path);
  size_t number = 0;
  for (const Json& message : json["messages"]) {
    ++number;
    const auto is_text = [&](const char* key) {
      return message.contains(key) && message[key].is_string();
    };
    require(message.is_object() && is_text("role") && is_text("content"),
            "{}: message {} must be an object with the texts role and content", path, number);
  }
  messages_ = json["messages"];
  file_ = path;
}

}  // namespace nanovllm
