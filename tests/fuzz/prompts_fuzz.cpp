// The lines of a prompts file, for the demo model.

#include "apps/prompts.h"

#include "nanovllm/base/check.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const auto tokenizer = Tokenizer::load(kTinyTales);
  static const auto chat_template = ChatTemplate::load(kTinyTales);
  static const PromptReader reader{tokenizer.get(), chat_template, {}, false, {}, {}};

  std::string_view input = text_of(data, size);
  for (int64_t number = 1; !input.empty(); ++number) {
    const std::string line(input.substr(0, input.find('\n')));
    input.remove_prefix(std::min(line.size() + 1, input.size()));
    const Prompt prompt = reader.from_line(line, number);  // an error is in the prompt
    if (!prompt.error.empty()) {
      check(prompt.error.starts_with("line "), "an error without its line: {}", prompt.error);
      continue;
    }
    prompt.params.validate();
    for (const int32_t id : prompt.token_ids) check(id >= 0, "a prompt with the id {}", id);
  }
  return 0;
}
