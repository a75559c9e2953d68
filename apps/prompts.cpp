#include "prompts.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "apps/batch/prompt_line.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/params/sampling_json.h"
#include "nanovllm/text/conversation.h"

namespace nanovllm {

namespace {

// All prompts of a file are in memory at the same time. The limit refuses a file without an end,
// for example a device, before memory is full.
constexpr size_t kMaxPromptsBytes = size_t{1} << 30;

Json user_message(const std::string& text) {
  return Json::array({{{"role", "user"}, {"content", text}}});
}

}  // namespace

void PromptReader::encode(Prompt& prompt, bool add_special_tokens) const {
  require(tokenizer != nullptr, "the model has no tokenizer.json: give prompt_token_ids");
  require_utf8(prompt.text, "the prompt");
  prompt.token_ids = tokenizer->encode(prompt.text, add_special_tokens);
}

void PromptReader::render(const Json& request, Prompt& prompt) const {
  Json variables = template_variables(request);
  require(chat_template.has_value(), "the model has no chat template");
  Json& messages = variables["messages"];
  if (!system.empty() && messages[0]["role"] != "system")
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", system}});
  for (const auto& [name, value] : template_defaults.items()) variables.emplace(name, Json(value));
  prompt.text = chat_template->prompt(variables);
  prompt.from_messages = true;
  encode(prompt, false);  // the template has written the special tokens
}

Prompt PromptReader::from_text(const std::string& text) const {
  if (chat) return from_messages(user_message(text));
  Prompt prompt;
  prompt.params = defaults;
  prompt.text = text;
  try {
    encode(prompt, true);
  } catch (const UserError& e) {
    prompt.error = e.what();
  }
  return prompt;
}

Prompt PromptReader::from_messages(const Json& messages) const {
  Prompt prompt;
  prompt.params = defaults;
  try {
    render({{"messages", messages}}, prompt);
  } catch (const UserError& e) {
    prompt.error = e.what();
  }
  return prompt;
}

void PromptReader::fill(const PromptLine& line, const std::string& where, Prompt& prompt) const {
  const Json& request = line.request;
  if (request.contains("prompt_token_ids")) {
    prompt.token_ids =
        token_ids_from_json(request["prompt_token_ids"], where + ": prompt_token_ids");
    return;
  }
  try {
    if (request.contains("messages")) return render(request, prompt);
    require(request["prompt"].is_string(), "prompt must be a text");
    prompt.text = request["prompt"].get<std::string>();
    // OpenAI's API for completions has no conversations.
    if (!chat || line.has_body) return encode(prompt, true);
    Json conversation = request;
    conversation.erase("prompt");
    conversation["messages"] = user_message(prompt.text);
    render(conversation, prompt);
  } catch (const UserError& e) {
    fail("{}: {}", where, e.what());
  }
}

Prompt PromptReader::from_line(const std::string& text, int64_t line_number) const {
  Prompt prompt;
  prompt.line_number = line_number;
  PromptLine line;
  const std::string where = fmt::format("line {}", line_number);
  try {
    const Json json = parse_json(text, where);
    require(json.is_object(), "{}: must be a JSON object", where);
    line.read(json, where);
    prompt.params = sampling_params_from_json(line.sampling, defaults, where);
    fill(line, where, prompt);
  } catch (const UserError& e) {
    prompt.error = e.what();
  }
  prompt.passed = std::move(line.passed);
  prompt.warning = std::move(line.warning);
  return prompt;
}

std::vector<Prompt> PromptReader::from_file(const std::string& path) const {
  using File = std::unique_ptr<FILE, int (*)(FILE*)>;
  // A FIFO is allowed, because a shell makes one for <(...).
  const File file = path == "-" ? File(stdin, [](FILE*) { return 0; })
                                : File(std::fopen(path.c_str(), "rbe"), std::fclose);
  require(file != nullptr, "{}: {}", path, std::strerror(errno));
  std::vector<Prompt> prompts;
  size_t num_bytes = 0;
  for (int64_t line_number = 1;; ++line_number) {
    const auto line = read_line(file.get(), path);
    if (!line) break;
    num_bytes += line->size() + 1;
    require(num_bytes <= kMaxPromptsBytes, "{}: more than {} bytes; split the file", path,
            kMaxPromptsBytes);
    if (line->find_first_not_of(" \t\r") != std::string::npos)
      prompts.push_back(from_line(*line, line_number));
  }
  return prompts;
}

}  // namespace nanovllm
