#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"
#include "nanovllm/engine/request_factory.h"
#include "nanovllm/text/chat_template.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

struct PromptLine;

/// One prompt of the command line or of a prompts file, ready for the engine, or an error.
struct Prompt {
  std::string text;  ///< the text as given or rendered; empty for token ids
  std::vector<int32_t> token_ids;
  SamplingParams params;
  Json passed = Json::object();  ///< fields of the line that its result has too
  std::string warning;           ///< a warning about the line, for the user
  bool from_messages = false;    ///< whether it was rendered with the chat template
  std::string error;             ///< why the line was refused; empty if it was not
  int64_t line_number = 0;       ///< number of its line in a file, from 1; 0: there is no file
};

/// The request for a prompt without an error. The answer to a conversation may begin with a
/// thought. Throws UserError.
inline NewRequest request_of(const RequestFactory& requests, const Prompt& prompt) {
  return requests.make(prompt.token_ids, requests.prepare(prompt.params), /*cache_salt=*/"",
                       /*may_think=*/prompt.from_messages);
}

/// Turns texts and the lines of prompts files (batch/prompt_line.h) into prompts. `tokenizer` and
/// `chat_template` may be missing.
struct PromptReader {
  const Tokenizer* tokenizer = nullptr;
  const std::optional<ChatTemplate>& chat_template;
  SamplingParams defaults;
  bool chat = false;                        ///< plain texts become a user's message
  std::string system;                       ///< the system message of conversations that have none
  Json template_defaults = Json::object();  ///< variables that a conversation may replace

  /// from_text() and the two functions after it do not throw if the text or line is wrong; they
  /// return a Prompt with an error.
  Prompt from_text(const std::string& text) const;
  Prompt from_messages(const Json& messages) const;
  Prompt from_line(const std::string& line, int64_t line_number) const;
  /// Reads all lines of a file, or of stdin for "-", and skips lines of white space. Throws
  /// UserError if the file cannot be read, or if it has more than 1 GiB.
  std::vector<Prompt> from_file(const std::string& path) const;

 private:
  void fill(const PromptLine& line, const std::string& where, Prompt& prompt) const;
  void render(const Json& request, Prompt& prompt) const;
  void encode(Prompt& prompt, bool add_special_tokens) const;
};

}  // namespace nanovllm
