#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/base/structured_outputs.h"
#include "nanovllm/server/conversation/calls/call_form.h"

namespace nanovllm::server {

/// How a model writes calls, as its chat template shows them.
struct WrittenCalls {
  CallForm form = CallForm::kHermes;  ///< kTags only as long as nothing is known
  bool names_first = false;           ///< of kMistral: [TOOL_CALLS]f[ARGS]{...}, not a list
  bool takes_several = true;          ///< the template can show several calls of an answer
  /// Free text cannot contain what opens a call, because it is a special token.
  bool opening_is_special = false;
};

/// What a request says about the calls of an answer.
struct CallRules {
  bool must_call = false;               ///< the answer is calls and nothing else
  bool parallel = true;                 ///< it may have several of them
  std::vector<std::string> names = {};  ///< the functions that may be called
};

/// The form of an answer that calls functions of `tools` in the form of the model, or nothing if
/// any answer may be parsed. The arguments of a call follow the function's schema if the answer
/// must call a function or if the function is strict; otherwise they are any object. `answer` is
/// the form that the request gives an answer without calls. Throws ApiError (400) for a form in
/// which calls cannot be forced.
std::optional<StructuredOutputs> constraint_of_calls(
    const WrittenCalls& written, const Json& tools, const CallRules& rules,
    const std::optional<StructuredOutputs>& answer);

/// The message about an error in the parameters of a function that the form of
/// constraint_of_calls() repeats, with the function's name instead of the place in the form.
/// Nothing if the error is about something else.
std::optional<std::string> message_about_tools(std::string_view message, const Json& tools,
                                               const CallRules& rules);

}  // namespace nanovllm::server
