#include "nanovllm/text/parts.h"

#include <array>
#include <string_view>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

const std::string& type_of(const Json& part) {
  require(part.is_object() && part.contains("type") && part["type"].is_string(),
          "has a part that is neither a text nor an object with a type");
  return part["type"].string();
}

/// A member that is a text, or null, which counts as an empty text.
std::string text_member(const Json& part, const char* name) {
  const auto text = part.find(name);
  require(text != part.end() && (text->is_string() || text->is_null()),
          "has a part of the type {} without a text in '{}'", printable(part["type"]), name);
  return text->is_null() ? std::string() : text->get<std::string>();
}

/// A text, or a list of parts, whose texts become lines.
std::string text_of_content(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const Json& part : content.is_array() ? content : Json::array()) {
    if (!text.empty()) text += '\n';
    text += text_of_part(part);
  }
  return text;
}

/// Anthropic's documents may be texts: {"source": {"type": "text", "data"}} or, with the type
/// "content", a list of blocks.
const Json* text_of_document(const Json& part) {
  const auto source = part.find("source");
  if (source == part.end() || !source->is_object()) return nullptr;
  const Json type = source->value("type", Json());
  const auto text = source->find(type == "text" ? "data" : "content");
  const bool is_text = type == "text" || type == "content";
  return is_text && text != source->end() ? &*text : nullptr;
}

}  // namespace

std::optional<std::string> media_of(const Json& part) {
  if (part.is_string()) return std::nullopt;
  const std::string& type = type_of(part);
  if (type == "document" && text_of_document(part) != nullptr) return std::nullopt;
  constexpr std::array<std::array<std::string_view, 2>, 6> kWords = {{{"image", "image"},
                                                                      {"audio", "audio"},
                                                                      {"video", "video"},
                                                                      {"file", "file"},
                                                                      {"document", "file"},
                                                                      {"container", "file"}}};
  for (const auto& [word, kind] : kWords)
    if (type.find(word) != std::string::npos) return std::string(kind);
  return std::nullopt;
}

std::string text_of_part(const Json& part) {
  if (part.is_string()) return part.get<std::string>();
  const std::string& type = type_of(part);
  if (type == "text" || type == "input_text" || type == "output_text" || type == "summary_text" ||
      type == "reasoning_text")
    return text_member(part, "text");
  if (type == "refusal") return text_member(part, "refusal");
  if (is_thought(part)) return text_of_content(part["thinking"]);
  if (const Json* text = type == "document" ? text_of_document(part) : nullptr) {
    const Json title = part.value("title", Json());
    return (title.is_string() ? title.get<std::string>() + "\n" : "") + text_of_content(*text);
  }
  Json shown = part;
  shown.erase("cache_control");
  return dump_json(shown);
}

bool is_thought(const Json& part) {
  return part.is_object() && part.value("type", Json()) == "thinking" && part.contains("thinking");
}

void replace_media(Json& messages) {
  for (Json& message : messages) {
    if (!message.is_object() || !message.contains("content") || !message["content"].is_array())
      continue;
    for (Json& part : message["content"])
      if (const auto media = media_of(part))
        part = {{"type", "text"}, {"text", "[" + *media + " omitted: this model reads text]"}};
  }
}

}  // namespace nanovllm
