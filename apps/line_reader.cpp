#include "line_reader.h"

#include <editline/readline.h>

#include <clocale>
#include <cstdlib>
#include <memory>

#include "nanovllm/base/system/files.h"

namespace nanovllm {

LineReader::LineReader(bool interactive) : interactive_(interactive) {
  if (!interactive) return;
  std::setlocale(LC_CTYPE, "");  // tells the editor how bytes form characters
  using_history();
}

std::optional<std::string> LineReader::read(const std::string& prompt) {
  if (!interactive_) return read_line(stdin, "stdin");
  const std::unique_ptr<char, void (*)(void*)> line(readline(prompt.c_str()), std::free);
  if (line == nullptr) return std::nullopt;
  if (*line != '\0') add_history(line.get());
  return line.get();
}

}  // namespace nanovllm
