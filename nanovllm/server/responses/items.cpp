#include "nanovllm/server/responses/items.h"

#include <utility>

namespace nanovllm::server {

namespace {

/// The content of an item: empty while the item is in progress, else `part`.
Json content_of(ItemStatus status, Json part) {
  return status == "in_progress" ? Json::array() : Json::array({std::move(part)});
}

}  // namespace

Json thoughts_part(const std::string& thoughts) {
  return {{"type", "reasoning_text"}, {"text", thoughts}};
}

Json text_part(const std::string& text, Json logprobs) {
  return {{"type", "output_text"},
          {"annotations", Json::array()},
          {"logprobs", std::move(logprobs)},
          {"text", text}};
}

Json reasoning_item(const std::string& id, ItemStatus status, const std::string& thoughts) {
  return {{"id", id},
          {"type", "reasoning"},
          {"status", status},
          {"summary", Json::array()},
          {"content", content_of(status, thoughts_part(thoughts))},
          {"encrypted_content", nullptr}};
}

Json message_item(const std::string& id, ItemStatus status, const std::string& text,
                  Json logprobs) {
  return {{"id", id},
          {"type", "message"},
          {"status", status},
          {"role", "assistant"},
          {"content", content_of(status, text_part(text, std::move(logprobs)))}};
}

Json call_item(const std::string& id, ItemStatus status, const ToolCall& call) {
  return {
      {"id", id},          {"type", "function_call"},
      {"status", status},  {"call_id", call.id},
      {"name", call.name}, {"arguments", status == "in_progress" ? std::string() : call.arguments}};
}

Json shown_input_item(Json item, const std::string& id) {
  item.emplace("type", "message");
  item.emplace("id", id);
  if (item["type"] != "message") return item;
  item.emplace("status", "completed");
  if (item.contains("content") && item["content"].is_string()) {
    const bool is_answer = item.value("role", Json()) == "assistant";
    Json part = is_answer ? text_part(item["content"].get<std::string>())
                          : Json({{"type", "input_text"}, {"text", item["content"]}});
    item["content"] = Json::array({std::move(part)});
  }
  return item;
}

}  // namespace nanovllm::server
