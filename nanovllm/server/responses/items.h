#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/server/conversation/answer_parser.h"

// The items that an answer in the form of OpenAI's Responses API has: thoughts, messages and calls.
namespace nanovllm::server {

/// "in_progress", "completed" or, for an answer that was cut off, "incomplete".
using ItemStatus = std::string_view;

Json reasoning_item(const std::string& id, ItemStatus status, const std::string& thoughts);
/// A message. `logprobs` is a list in the form of chat completions.
Json message_item(const std::string& id, ItemStatus status, const std::string& text,
                  Json logprobs = Json::array());
Json call_item(const std::string& id, ItemStatus status, const ToolCall& call);

/// The part of a message or of thoughts that has their text.
Json text_part(const std::string& text, Json logprobs = Json::array());
Json thoughts_part(const std::string& thoughts);

/// An item of a request as GET /v1/responses/ID/input_items shows it: with an id and, if it is a
/// message, with a list of parts.
Json shown_input_item(Json item, const std::string& id);

}  // namespace nanovllm::server
