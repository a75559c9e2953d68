#pragma once

#include <string>

#include "nanovllm/base/json.h"

namespace nanovllm {

/// The messages of a conversation, in OpenAI's form.
class Conversation {
 public:
  explicit Conversation(const std::string& system) { begin(system); }

  /// Begins a new conversation, with this system message if it is not empty.
  void begin(const std::string& system);
  /// The system message; empty if there is none.
  std::string system() const;
  const Json& messages() const { return messages_; }
  void set_messages(Json messages) { messages_ = std::move(messages); }

  /// Writes {"messages": [...]}. An existing file is replaced only if this conversation was loaded
  /// from it or saved there before. save() and load() throw UserError and leave everything
  /// unchanged if something is wrong.
  void save(const std::string& path);
  void load(const std::string& path);

 private:
  Json messages_;
  std::string file_;  // the file of the last save() or load()
};

/// A message with this role and content.
Json message_of(const std::string& role, const std::string& content);

}  // namespace nanovllm
