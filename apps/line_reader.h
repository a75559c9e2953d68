#pragma once

#include <cstdio>
#include <optional>
#include <string>

namespace nanovllm {

/// The next line of the file without its end; empty at the end of the file. Throws UserError that
/// names `where` if it cannot be read, or for a line longer than any prompt is: what has no ends of
/// lines, a device or a file of weights, would fill the memory.
std::optional<std::string> read_line(FILE* file, const std::string& where);

/// Lines from stdin: on a terminal edited and with a history, else as they come.
class LineReader {
 public:
  explicit LineReader(bool interactive);

  /// Without its end; empty at the end of the input.
  std::optional<std::string> read(const std::string& prompt);

 private:
  bool interactive_;
};

}  // namespace nanovllm
