#pragma once

#include <string>

#include "nanovllm/base/json.h"

namespace nanovllm {

/// A line of a prompts file, taken apart. A line is one of
///   {"prompt" | "prompt_token_ids" | "messages": ..., "sampling_params"?: {...}, ...}
///   {"custom_id", "method"?, "url"?, "body": {...}}, the form of OpenAI's batch files.
struct PromptLine {
  /// One of prompt (a text), prompt_token_ids and messages, and optionally tools,
  /// chat_template_kwargs and enable_thinking.
  Json request = Json::object();
  Json sampling = Json::object();  ///< with the names of SamplingParams
  Json passed = Json::object();    ///< all other fields, which the line's result has too
  bool has_body = false;
  std::string warning;  ///< about a field that is passed on but looks like a misspelt parameter

  /// Reads a line. Throws UserError that begins with `where`; `passed` is filled even then.
  void read(const Json& line, const std::string& where);

 private:
  void read_body(const Json& line, const std::string& where);
  void add_sampling(const std::string& name, const Json& value, const std::string& where);
  /// Takes a field that has a meaning in every line. Returns false if `name` is no such field.
  bool take(const std::string& name, const Json& object, const std::string& where);
};

}  // namespace nanovllm
