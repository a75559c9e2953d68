#pragma once

#include <optional>

#include "apps/chat/history.h"
#include "apps/chat/key_reader.h"
#include "apps/chat/line_editor.h"

namespace nanovllm {

/// Reads what the user says from stdin: lines, or on a terminal texts that the user can edit, with
/// a history. Texts are in UTF-8 there, whatever the locale is.
class LineReader {
 public:
  explicit LineReader(bool interactive);
  /// `interrupted`: Ctrl-C has just stopped an answer, so that the next one is the second.
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
