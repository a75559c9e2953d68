#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/server/conversation/calls/readers.h"

namespace nanovllm::server {

/// How a model writes calls.
enum class CallForm {
  kTags,    ///< Hermes or XML, whatever follows <tool_call>
  kHermes,  ///< hermes_reader(), and so on
  kXml,
  kJson,
  kPythonic,
  kMistral
};

/// The form that a name of vLLM's option --tool-call-parser means; nothing if it is not known.
std::optional<CallForm> call_form_named(std::string_view name);
/// All names that call_form_named() knows.
std::vector<std::string> call_form_names();

/// The form that a chat template shows to the model. `mentions` says whether the template contains
/// a text.
template <class Mentions>
CallForm call_form_of_template(Mentions mentions) {
  if (mentions("<tool_call>") || mentions("<function=")) return CallForm::kTags;
  if (mentions("[TOOL_CALLS]")) return CallForm::kMistral;
  if (mentions("[func_name1(")) return CallForm::kPythonic;
  if (mentions("<|python_tag|>") || mentions("\"parameters\": dictionary")) return CallForm::kJson;
  return CallForm::kTags;
}

CallReaderPtr call_reader(CallForm form, const OfferedTools& tools);

/// Tags of the form that are special tokens of some tokenizers. A text without special tokens does
/// not contain them.
std::span<const std::string_view> special_tags(CallForm form);

/// A new id of a call. Mistral's chat templates take only ids of nine letters and digits.
std::string new_call_id(CallForm form);

}  // namespace nanovllm::server
