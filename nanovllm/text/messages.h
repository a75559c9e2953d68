#pragma once

#include <functional>
#include <string>

#include "nanovllm/base/json.h"
#include "nanovllm/text/template_traits.h"

namespace nanovllm {

/// Throws UserError that begins with "messages" unless it is a list of at least one message of
/// OpenAI's API: an object with a role, which is a text, and a content, which is a text, a list of
/// parts, or null or absent. What parts and calls must be is checked where they are converted.
void check_messages(const Json& messages);

/// Gives messages of OpenAI's API the form that a chat template reads, so that nothing that a
/// client sends is left out of the prompt, and nothing appears in it that the client did not mean:
///
/// - A content that is null or missing becomes "" or, in a message with calls, what the template
///   expects; a list of parts becomes a text, unless the template reads parts. Empty lists of calls
///   are removed.
/// - The arguments of calls become an object or a text, whichever the template reads. Calls and
///   results of tools become texts if it reads neither.
/// - "developer" becomes "system", "function" becomes "tool", and the thoughts of earlier answers
///   have both of their names, reasoning and reasoning_content.
/// - System messages that the template would leave out are added to another message: to the first
///   system message or, behind other messages, to the user's message that is next to them.
///
/// `has_role` says whether the template shows a message of another role. Throws UserError as
/// check_messages() does, for a role that the template does not show, for parts that are not texts,
/// and for calls without a function that has a name.
void normalize_messages(Json& messages, const TemplateTraits& traits,
                        const std::function<bool(const std::string& role)>& has_role);

}  // namespace nanovllm
