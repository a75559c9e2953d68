// A chat template and, after a line of dashes, the variables that it is rendered with.
//
// The budget is a fiftieth of a real one, so that work that it bounds ends in much less than a
// second, even under the sanitizers. If a rendering takes seconds or allocates many megabytes, some
// work is not charged; run.sh reports both as findings.

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/jinja/interpreter.h"
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
  static const Json tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  std::string_view input = text_of(data, size);
  const std::string source(take_part(input));
  expect_user_errors_only([&] {
    const jinja::Template chat(source, "template");
    jinja::Budget budget(jinja::Budget::kSteps / 50, jinja::Budget::kBytes / 50);
    const std::string prompt =
        jinja::Interpreter(chat, budget, /*now=*/0)
            .render(input.empty() ? conversation : parse_json(input, "context"), tokens);
    check(!is_utf8(source) || is_utf8(prompt), "the prompt is not UTF-8");
  });
  return 0;
}
