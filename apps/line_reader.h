#pragma once

#include <optional>
#include <string>

namespace nanovllm {

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
