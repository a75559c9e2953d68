// Asks a chat model two questions, as nano-vLLM's example.py does.
//   example [MODEL]
#include <nanovllm/llm.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

/// The text in quotes, with visible line ends.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return result + "'";
}

void run(const std::string& model) {
  nanovllm::LLM llm(model);
  const nanovllm::SamplingParams sampling_params = {.temperature = 0.6, .max_tokens = 256};
  std::vector<std::string> prompts = {
      "introduce yourself",
      "list all prime numbers within 100",
  };
  for (std::string& prompt : prompts)
    prompt = llm.tokenizer().apply_chat_template({{.role = "user", .content = prompt}},
                                                 /*add_generation_prompt=*/true);
  const std::vector<nanovllm::RequestOutput> outputs = llm.generate(prompts, sampling_params);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::printf("\nPrompt: %s\n", quoted(prompts[i]).c_str());
    std::printf("Completion: %s\n", quoted(outputs[i].text).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "models/tiny-tales");
  } catch (const nanovllm::UserError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const std::exception& e) {  // a download or the engine failed
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
