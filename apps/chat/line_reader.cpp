#include "apps/chat/line_reader.h"

#include <clocale>

#include "nanovllm/base/system/files.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "terminal.h"

namespace nanovllm {

LineReader::LineReader(bool interactive) : interactive_(interactive) {
  if (!interactive || !has_escape_sequences()) return;
  // wcwidth() needs a UTF-8 locale. Without C.UTF-8 it uses the characters of the user's locale.
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) std::setlocale(LC_CTYPE, "");
  editing_.emplace();
}

Input LineReader::read(bool interrupted) {
  if (!editing_) {
    if (interactive_) print_out("> ");
    auto line = read_line(stdin, "stdin");
    if (!line && interactive_) print_out("\n");
    if (!line) return {};
    for (bool is_open = is_open_block(*line); is_open;) {
      const auto more = read_line(stdin, "stdin");
      if (!more) break;
      *line += "\n" + *more;
      is_open = more->find(kBlock) == std::string::npos;
    }
    return {Input::Kind::kText, *line};
  }
  Input input = LineEditor(editing_->keys, editing_->history.entries(), interrupted).read();
  if (input.text.find_first_not_of(" \n\t") != std::string::npos) editing_->history.add(input.text);
  return input;
}

}  // namespace nanovllm
