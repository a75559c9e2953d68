#include "nanovllm/server/conversation/calls/call_form.h"

#include <array>
#include <utility>

#include "nanovllm/server/http/ids.h"

namespace nanovllm::server {

namespace {

constexpr std::pair<std::string_view, CallForm> kFormNames[] = {
    {"hermes", CallForm::kHermes},
    {"qwen3", CallForm::kHermes},
    {"qwen3_coder", CallForm::kXml},
    {"qwen3_xml", CallForm::kXml},
    {"llama3_json", CallForm::kJson},
    {"llama4_json", CallForm::kJson},
    {"xlam", CallForm::kJson},
    {"pythonic", CallForm::kPythonic},
    {"llama4_pythonic", CallForm::kPythonic},
    {"mistral", CallForm::kMistral}};

constexpr auto kOfTags = std::to_array<std::string_view>({"<tool_call>", "</tool_call>"});
constexpr auto kOfLlama =
    std::to_array<std::string_view>({"<|python_tag|>", "<|python_start|>", "<|python_end|>"});
constexpr auto kOfMistral =
    std::to_array<std::string_view>({"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"});

}  // namespace

std::optional<CallForm> call_form_named(std::string_view name) {
  for (const auto& [known, form] : kFormNames)
    if (name == known) return form;
  return std::nullopt;
}

std::vector<std::string> call_form_names() {
  std::vector<std::string> names;
  for (const auto& [name, form] : kFormNames) names.emplace_back(name);
  return names;
}

CallReaderPtr call_reader(CallForm form, const OfferedTools& tools) {
  switch (form) {
    case CallForm::kTags: {
      std::vector<CallReaderPtr> readers;
      readers.push_back(hermes_reader(tools));
      readers.push_back(xml_reader(tools));
      return any_reader(std::move(readers));
    }
    case CallForm::kHermes:
      return hermes_reader(tools);
    case CallForm::kXml:
      return xml_reader(tools);
    case CallForm::kJson:
      return json_reader(tools);
    case CallForm::kPythonic:
      return pythonic_reader(tools);
    case CallForm::kMistral:
      return mistral_reader(tools);
  }
  return nullptr;
}

std::span<const std::string_view> special_tags(CallForm form) {
  if (form == CallForm::kMistral) return kOfMistral;
  if (form == CallForm::kJson || form == CallForm::kPythonic) return kOfLlama;
  return kOfTags;
}

std::string new_call_id(CallForm form) {
  if (form != CallForm::kMistral) return new_id("call_");
  return new_id("").substr(0, 9);
}

}  // namespace nanovllm::server
