#pragma once

#include <optional>

#include "apps/chat/history.h"
#include "apps/chat/key_reader.h"
#include "apps/chat/line_editor.h"

namespace nanovllm {

/// Reads the user's messages from stdin: lines, or on a terminal texts that the user can edit, with
/// a history. On a terminal texts are in UTF-8, whatever the locale is.
class LineReader {
 public:
  explicit LineReader(bool interactive);
  /// Reads a message. `interrupted` says that Ctrl-C has just stopped an answer, so that the next
  /// Ctrl-C counts as the second one.
  Input read(bool interrupted);

 private:
  struct Editing {
    KeyReader keys;
    History history;
  };
  bool interactive_;
  std::optional<Editing> editing_;
};

}  // namespace nanovllm
