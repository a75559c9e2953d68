#pragma once

#include <optional>
#include <string>

#include "nanovllm/base/json.h"

// The parts (Anthropic: blocks) of a message's content. New types of parts appear often, and our
// models read text. So a part is either text, taken from the fields of the common types and from
// the part's JSON for all others, or it is media, whose content no text could give.
namespace nanovllm {

/// "image", "audio", "video" or "file" for a part whose content no text can tell; else nothing.
/// Throws UserError if the part is neither a text nor an object with a type.
std::optional<std::string> media_of(const Json& part);

/// The text of a part that is no media. Throws UserError if the part is invalid.
std::string text_of_part(const Json& part);

/// Whether the part has thoughts of the assistant, as Mistral's API sends them.
bool is_thought(const Json& part);

/// Replaces each part of the messages that is media by a text that says so. Messages whose content
/// is no list of parts stay as they are.
void replace_media(Json& messages);

}  // namespace nanovllm
