#pragma once

#include <optional>
#include <string>

namespace nanovllm {

/// Reads lines from stdin. On a terminal the user can edit a line and has a history.
class LineReader {
 public:
  explicit LineReader(bool interactive);

  /// The next line without its line end; nothing at the end of the input.
  std::optional<std::string> read(const std::string& prompt);

 private:
  bool interactive_;
};

}  // namespace nanovllm
