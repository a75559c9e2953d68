#include "line_reader.h"

#include <editline/readline.h>

#include <clocale>
#include <cstdlib>
#include <iostream>
#include <memory>

namespace nanovllm {

LineReader::LineReader(bool interactive) : interactive_(interactive) {
  if (!interactive) return;
  std::setlocale(LC_CTYPE, "");  // the editor moves by characters of this encoding
  using_history();
}

std::optional<std::string> LineReader::read(const std::string& prompt) {
  if (!interactive_) {
    std::string line;
    return std::getline(std::cin, line) ? std::optional(std::move(line)) : std::nullopt;
  }
  const std::unique_ptr<char, void (*)(void*)> line(readline(prompt.c_str()), std::free);
  if (line == nullptr) return std::nullopt;
  if (*line != '\0') add_history(line.get());
  return line.get();
}

}  // namespace nanovllm
