#include "nanovllm/server/conversation/client_lines.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace nanovllm::server {

namespace {

// The beginnings of lines that clients write for the operator of a service. The lines are at the
// start of a text.
constexpr std::string_view kBeginnings[] = {
    "x-anthropic-billing-header:",  // Claude Code: its version, and a number of the session
};

/// Drops such lines from the start of a text. Returns whether there was one.
bool drop_lines(std::string& text) {
  const auto begins = [&](std::string_view beginning) { return text.starts_with(beginning); };
  bool found = false;
  while (std::ranges::any_of(kBeginnings, begins)) {
    found = true;
    text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
  }
  if (found) text.erase(0, text.find_first_not_of("\r\n"));
  return found;
}

/// Drops such lines from a text. Returns whether there were any and nothing is left.
bool becomes_empty(Json& text) {
  if (!text.is_string()) return false;
  auto& characters = text.string();
  return drop_lines(characters) && characters.empty();
}

bool becomes_empty_part(Json& part) {
  return part.is_object() && part.contains("text") && becomes_empty(part["text"]);
}

}  // namespace

void drop_client_lines(Json& messages) {
  const auto is_system = [](const Json& message) {
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    return role == "system" || role == "developer";
  };
  size_t i = 0;
  while (i < messages.size() && is_system(messages[i])) {
    Json& content = messages[i]["content"];
    bool is_empty = becomes_empty(content);
    if (content.is_array() && !content.empty()) {
      Json parts = Json::array();
      for (Json& part : content)
        if (!becomes_empty_part(part)) parts.push_back(std::move(part));
      content = std::move(parts);
      is_empty = content.empty();
    }
    if (is_empty) messages.erase(i);
    else ++i;
  }
}

}  // namespace nanovllm::server
