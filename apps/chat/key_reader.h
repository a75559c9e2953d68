#pragma once

#include <optional>
#include <string>

namespace nanovllm {

/// Reads keys from the terminal of stdin in RawMode.
class KeyReader {
 public:
  KeyReader();

  /// A key: a character in UTF-8, a control character, or the escape sequence of another key.
  /// Empty if the text must be drawn again, because the terminal's size has changed or the process
  /// was stopped and continued. Nothing if the terminal is gone.
  std::optional<std::string> read();
  /// The text of a paste, of which read() has returned the beginning. Its line ends are "\n", and
  /// tabs are its only other control characters.
  std::string read_paste();
  /// Whether another key is waiting.
  bool has_more();

 private:
  // The values of a byte that could not be read.
  enum Missing { kEnd = -1, kSignal = -2, kTimeout = -3 };
  int next_byte(int timeout_ms);

  std::string buffer_;
  size_t at_ = 0;
};

}  // namespace nanovllm
