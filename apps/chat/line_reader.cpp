#include "apps/chat/line_reader.h"

#include <clocale>
#include <string_view>

#include "nanovllm/base/system/files.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "terminal.h"

namespace nanovllm {

LineReader::LineReader(bool interactive) : interactive_(interactive) {
  if (!interactive || !has_escape_sequences()) return;
  // For wcwidth(). Without that locale it takes the characters of the user's.
  if (std::setlocale(LC_CTYPE, "C.UTF-8") == nullptr) std::setlocale(LC_CTYPE, "");
  editing_.emplace();
}

Input LineReader::read(bool interrupted) {
  if (!editing_) {
    if (interactive_) print_out("> ");
    auto line = read_line(stdin, "stdin");
    if (!line && interactive_) print_out("\n");
    if (!line) return {};
    // A text between \"\"\" and \"\"\" may have several lines.
    constexpr std::string_view kBlock = "\"\"\"";
    if (line->starts_with(kBlock) && line->find(kBlock, kBlock.size()) == std::string::npos)
      while (const auto more = read_line(stdin, "stdin")) {
        *line += "\n" + *more;
        if (more->find(kBlock) != std::string::npos) break;
      }
    return {Input::Kind::kText, *line};
  }
  Input input = LineEditor(editing_->keys, editing_->history.entries(), interrupted).read();
  if (input.text.find_first_not_of(" \n\t") != std::string::npos) editing_->history.add(input.text);
  return input;
}

}  // namespace nanovllm
