#include "prompts.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "nanovllm/base/check.h"
#include "nanovllm/base/sampling_json.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

namespace {

// All prompts of a file are in memory at the same time. The limit refuses a file without an end,
// for example a device, before memory is full.
constexpr size_t kMaxPromptsBytes = size_t{1} << 30;

}  // namespace

void PromptReader::encode(Prompt& prompt, bool add_special_tokens) const {
  require(tokenizer != nullptr, "the model has no tokenizer.json: give prompt_token_ids");
  prompt.token_ids = tokenizer->encode(prompt.text, add_special_tokens);
}

void PromptReader::render(const Json& messages, const Json& line, Prompt& prompt) const {
  require(messages.is_array() && !messages.empty(),
          "messages must be a list of at least one message");
  for (const Json& message : messages)
    require(message.is_object() && message.contains("role"),
            "each message must be an object with a role");
  require(chat_template.has_value(), "the model has no chat template");
  Json context =
      line.contains("chat_template_kwargs") ? line["chat_template_kwargs"] : Json::object();
  require(context.is_object(), "chat_template_kwargs must be an object");
  if (enable_thinking && !context.contains("enable_thinking"))
    context["enable_thinking"] = *enable_thinking;
  if (line.contains("enable_thinking")) {
    require(line["enable_thinking"].is_boolean(), "enable_thinking must be true or false");
    context["enable_thinking"] = line["enable_thinking"];
  }
  context["tools"] = line.contains("tools") ? line["tools"] : Json();  // null, as in transformers
  context.emplace("documents", nullptr);
  context["messages"] = messages;
  context["add_generation_prompt"] = true;
  prompt.text = chat_template->prompt(context);
  encode(prompt, false);  // the template has written the special tokens
}

Prompt PromptReader::from_text(const std::string& text) const {
  if (chat) {
    Json messages = Json::array();
    if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
    messages.push_back({{"role", "user"}, {"content", text}});
    return from_messages(messages);
  }
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
    render(messages, Json::object(), prompt);
  } catch (const UserError& e) {
    prompt.error = e.what();
  }
  return prompt;
}

Prompt PromptReader::from_line(const std::string& line, int64_t line_number) const {
  Prompt prompt;
  const std::string where = fmt::format("line {}", line_number);
  try {
    const Json json = parse_json(line, where);
    require(json.is_object(), "{}: must be a JSON object", where);
    for (const auto& [key, value] : json.items()) {
      static constexpr std::array kKeys = {
          "prompt",          "prompt_token_ids", "messages", "tools", "chat_template_kwargs",
          "enable_thinking", "sampling_params"};
      bool known = false;
      for (const char* k : kKeys) known = known || key == k;
      require(known, "{}: '{}' is not one of {}", where, key, fmt::join(kKeys, ", "));
    }
    const int num_prompts = static_cast<int>(json.contains("prompt")) +
                            static_cast<int>(json.contains("prompt_token_ids")) +
                            static_cast<int>(json.contains("messages"));
    require(num_prompts == 1, "{}: needs one of prompt, prompt_token_ids and messages, has {}",
            where, num_prompts);
    SamplingParams params = defaults;
    if (json.contains("sampling_params"))
      params =
          sampling_params_from_json(json["sampling_params"], defaults, where + ": sampling_params");
    if (json.contains("prompt_token_ids")) {
      prompt.token_ids =
          token_ids_from_json(json["prompt_token_ids"], where + ": prompt_token_ids");
    } else if (json.contains("prompt")) {
      require(json["prompt"].is_string(), "{}: prompt must be a text", where);
      prompt = from_text(json["prompt"].get<std::string>());
      require(prompt.error.empty(), "{}: {}", where, prompt.error);
    } else {
      try {
        render(json["messages"], json, prompt);
      } catch (const UserError& e) {
        fail("{}: {}", where, e.what());
      }
    }
    prompt.params = params;
  } catch (const UserError& e) {
    prompt.error = e.what();
  }
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
