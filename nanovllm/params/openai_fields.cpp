#include "nanovllm/params/openai_fields.h"

#include <algorithm>
#include <array>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

struct Unsupported {
  std::string_view name;
  const char* harmless = "null";  // JSON of the value that asks for nothing
};
constexpr auto kAnywhere = std::to_array<Unsupported>({{"response_format", R"({"type":"text"})"},
                                                       {"tool_choice", R"("auto")"},
                                                       {"structured_outputs"},
                                                       {"include_stop_str_in_output", "false"},
                                                       {"spaces_between_special_tokens", "true"},
                                                       {"truncate_prompt_tokens"},
                                                       {"guided_json"},
                                                       {"guided_regex"},
                                                       {"guided_choice"},
                                                       {"guided_grammar"}});
// These have names that a line of one's own may use for something else.
constexpr auto kInBody = std::to_array<Unsupported>({{"parallel_tool_calls", "true"},
                                                     {"functions", "[]"},
                                                     {"function_call", R"("auto")"},
                                                     {"modalities", R"(["text"])"},
                                                     {"audio"},
                                                     {"web_search_options"},
                                                     {"include_reasoning", "true"},
                                                     {"echo", "false"},
                                                     {"suffix", R"("")"},
                                                     {"best_of", "1"},
                                                     {"length_penalty", "1.0"},
                                                     {"use_beam_search", "false"},
                                                     {"chat_template"},
                                                     {"add_generation_prompt", "true"},
                                                     {"continue_final_message", "false"},
                                                     {"logits_processors", "[]"},
                                                     {"prompt_embeds"},
                                                     {"return_tokens_as_token_ids", "false"}});

const Unsupported* find_in(const auto& list, std::string_view name) {
  const auto at = std::ranges::find(list, name, &Unsupported::name);
  return at == list.end() ? nullptr : &*at;
}

}  // namespace

bool is_unsupported_field(std::string_view name) { return find_in(kAnywhere, name) != nullptr; }

bool refuse_unsupported(std::string_view name, const Json& value, bool in_body) {
  const Unsupported* field = find_in(kAnywhere, name);
  if (field == nullptr && in_body) field = find_in(kInBody, name);
  if (field == nullptr) return false;
  require(value.is_null() || value == Json::parse(field->harmless), "{} {} is not supported", name,
          printable(value));
  return true;
}

}  // namespace nanovllm
