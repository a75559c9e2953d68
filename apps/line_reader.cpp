#include "line_reader.h"

#include <editline/readline.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

constexpr size_t kMaxLineBytes = size_t{1} << 28;

}  // namespace

std::optional<std::string> read_line(FILE* file, const std::string& where) {
  std::string line;
  for (int c; (c = ::getc_unlocked(file)) != EOF;) {
    if (c == '\n') return line;
    require(line.size() < kMaxLineBytes, "{}: a line of more than {} bytes", where, kMaxLineBytes);
    line += static_cast<char>(c);
  }
  require(std::ferror(file) == 0, "{}: {}", where, std::strerror(errno));
  return line.empty() ? std::nullopt : std::optional(std::move(line));
}

LineReader::LineReader(bool interactive) : interactive_(interactive) {
  if (!interactive) return;
  std::setlocale(LC_CTYPE, "");  // the editor moves by characters of this encoding
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
