#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "nanovllm/base/json.h"

namespace nanovllm {

/// Turns a conversation into the text of a prompt, as transformers' apply_chat_template does. The
/// checkpoint contains a Jinja2 template, which is rendered in a sandbox: it cannot read files,
/// import anything or change its input. Rendering is thread-safe. jinja/ implements the language;
/// read jinja/interpreter.h first.
class ChatTemplate {
 public:
  /// Reads FOLDER/chat_template.jinja or, if there is none, the chat_template of
  /// FOLDER/tokenizer_config.json (a text, or a list of {name, template}: "tool_use" is used if
  /// tools are given, otherwise "default"). The special tokens are those of tokenizer_config.json,
  /// and in older folders those of special_tokens_map.json, as in transformers. Returns nothing if
  /// the folder has no template. Throws UserError if one does not parse. A `template_file` replaces
  /// the folder's templates.
  static std::optional<ChatTemplate> load(const std::string& folder,
                                          const std::string& template_file = "");

  /// load() for callers that may never render a conversation: render() and prompt() throw what
  /// load() throws, or, if the folder has no template, an error with `hint` at its end.
  static ChatTemplate load_for_later(const std::string& folder, const std::string& hint);

  /// `special_tokens`: {"bos_token": "<s>", ...}, variables of every rendering. `where` names the
  /// template in errors. Throws UserError "<where>, line L, column C: <what>" if the template does
  /// not parse.
  ChatTemplate(const std::string& source, Json special_tokens, std::string where);

  /// Whether the source of the template, or of the one for tools, contains a text.
  bool mentions(std::string_view text) const;

  /// `context`: {"messages": [...], "tools"?: [...], "add_generation_prompt"?: bool, ...variables}.
  /// Messages and tools have OpenAI's format. Throws UserError with line and column for an error of
  /// the template, which includes raise_exception(), and if it exceeds the limits of steps, depth
  /// or bytes. A request to stop ends it with Cancelled.
  std::string render(const Json& context, std::stop_token stop = {}) const;

  /// The prompt for a model that reads only text, from messages as clients of OpenAI's API send
  /// them. They are first given the form that the template reads (normalize_messages), so any
  /// template takes them. With "continue_final_message": true in the context the prompt ends behind
  /// the content of the last message, and the answer continues it. Throws what render() throws, and
  /// UserError for a part that is not a text.
  std::string prompt(Json context, const std::stop_token& stop = {}) const;

 private:
  struct Source;
  ChatTemplate(std::shared_ptr<const Source> source, Json special_tokens);
  const Source& source_for(const Json& context) const;

  std::shared_ptr<const Source> template_;
  std::shared_ptr<const Source> tool_template_;  // null unless there is a separate one for tools
  Json special_tokens_;
  std::string error_;  // the reason why template_ is null
};

}  // namespace nanovllm
