#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "nanovllm/base/json.h"

namespace nanovllm {

/// How a chat template treats messages that not every template expects. Templates are programs, and
/// many silently leave out what they do not know. So each trait is found by rendering a small
/// conversation and looking for a word of it in the prompt.
struct TemplateTraits {
  bool texts = true;          ///< a content may be a text; false: it must be a list of parts
  bool system = true;         ///< a system message at the start is in the prompt
  bool two_systems = true;    ///< a second system message that follows it is in the prompt
  bool later_system = true;   ///< a system message behind other messages is in the prompt
  bool developer = false;     ///< the role "developer" has a case of its own
  bool tool = true;           ///< a message of the role "tool" is in the prompt
  bool calls = true;          ///< the tool_calls of an assistant's message are in the prompt
  bool call_texts = true;     ///< the content of a message that has calls is in the prompt
  bool two_answers = true;    ///< two messages of the assistant may follow each other
  bool takes_objects = true;  ///< arguments of calls may be objects
  bool takes_texts = true;    ///< arguments of calls may be texts
  /// The content of an assistant's message that only calls tools: null, "", or none for a message
  /// without the field.
  std::optional<Json> no_content = "";
  /// For each role, whether the template reads a list of parts as their texts.
  std::map<std::string, bool> reads_parts;

  /// The prompt for {"messages", "tools"?}, or nothing if the template raises an error.
  using Render = std::function<std::optional<std::string>(const Json& context)>;
  /// `source` is the text of the template.
  static TemplateTraits of(const std::string& source, const Render& render);
};

/// Whether a message of this role, behind a user's message, is in the prompt.
bool template_has_role(const std::string& role, const TemplateTraits& traits,
                       const TemplateTraits::Render& render);

}  // namespace nanovllm
