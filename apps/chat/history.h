#pragma once

#include <string>
#include <vector>

namespace nanovllm {

/// The texts that the user has entered, in this and in earlier conversations. They are in the file
/// $XDG_STATE_HOME/nanovllm/history (~/.local/state by default), which only the user can read. A
/// history that cannot be read or written is no error: it then lasts as long as the program.
class History {
 public:
  History();
  /// All texts; the latest one is last.
  const std::vector<std::string>& entries() const { return entries_; }
  /// Adds a text unless it equals the latest one.
  void add(const std::string& text);

 private:
  void append(const std::string& lines, int flags);

  std::string path_;  // empty if there is none
  std::vector<std::string> entries_;
};

}  // namespace nanovllm
