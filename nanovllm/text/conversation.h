#pragma once

#include "nanovllm/base/json.h"

namespace nanovllm {

/// The variables of a chat template (ChatTemplate::prompt) for a conversation in OpenAI's form:
/// {"messages": [...], "tools"?, "chat_template_kwargs"?: {variables}, "enable_thinking"?: bool}.
/// Other keys are ignored. Throws UserError that begins with the name of the field
/// (check_messages()).
Json template_variables(Json request);

}  // namespace nanovllm
