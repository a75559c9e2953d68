// A chat template and, behind a line of dashes, the variables that it is rendered with.

#include "nanovllm/text/chat_template.h"

#include "nanovllm/base/check.h"
#include "nanovllm/text/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr const char* kConversation = R"({
  "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi \u00e9"},
               {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}],
  "tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": [1, 2.5, true]}}}],
  "add_generation_prompt": true})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const Json conversation = parse_json(kConversation, "conversation");
  std::string_view input = text_of(data, size);
  const std::string source(take_part(input));
  expect_user_errors_only([&] {
    const ChatTemplate chat(source, {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, "template");
    const std::string prompt =
        chat.render(input.empty() ? conversation : parse_json(input, "context"));
    check(!is_utf8(source) || is_utf8(prompt), "the prompt is not UTF-8");
  });
  return 0;
}
