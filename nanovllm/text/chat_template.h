#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nanovllm/base/json.h"

namespace nanovllm {

namespace jinja {
class Template;
}

/// Turns a conversation into the text of a prompt, as transformers' apply_chat_template does. The
/// checkpoint brings a Jinja2 template, which is rendered in a sandbox: it cannot read files,
/// import anything or change its input. Rendering is thread-safe. The language is in jinja/; its
/// first file to read is jinja/interpreter.h.
class ChatTemplate {
 public:
  /// FOLDER/chat_template.jinja, else the chat_template of FOLDER/tokenizer_config.json (a text, or
  /// a list of {name, template}: "tool_use" is taken where tools are given, else "default"), with
  /// the special tokens of tokenizer_config.json. Empty where the folder has none. Throws UserError
  /// for one that does not parse.
  static std::optional<ChatTemplate> load(const std::string& folder);

  /// `special_tokens`: {"bos_token": "<s>", ...}, variables of every rendering. `where` names the
  /// template in errors. Throws UserError "<where>, line L, column C: <what>" for a template that
  /// does not parse.
  ChatTemplate(const std::string& source, Json special_tokens, std::string where);

  /// `context`: {"messages": [...], "tools"?: [...], "add_generation_prompt"?: bool, ...variables},
  /// messages and tools in OpenAI's form. Throws UserError with line and column for a template's
  /// error, raise_exception() included, and for one that exceeds the limits of steps, depth or
  /// bytes.
  std::string render(const Json& context) const;

  /// The prompt of a model that reads text alone. As render(), but for messages whose content is a
  /// list of parts: {"type": "text", "text": ...} or a text. Templates that read such parts get the
  /// list, others the texts, joined by line ends (as vLLM joins them). Throws UserError that names
  /// the type of any other part.
  std::string prompt(const Json& context) const;

 private:
  ChatTemplate(std::shared_ptr<const jinja::Template> parsed, Json special_tokens);
  bool reads_parts(const std::string& role, Json context) const;

  std::shared_ptr<const jinja::Template> template_;
  std::shared_ptr<const jinja::Template>
      tool_template_;  // null unless tools have a template of their own
  Json special_tokens_;
};

}  // namespace nanovllm
