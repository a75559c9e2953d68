#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

/// The lines of a file, a pipe or a terminal, read as they come. It keeps only the line that it is
/// reading and one read's worth of the next ones in memory.
class LineStream {
 public:
  /// Opens a file, or takes stdin for "-". Waits for the writer of a FIFO. Throws UserError.
  explicit LineStream(const std::string& path);

  /// The next line without its newline, or nothing if no whole line has arrived yet or at_end().
  /// Waits at most `wait_ms` milliseconds for it; a signal ends the wait. Throws UserError that
  /// names the file if it cannot be read, or if a line has more than 256 MiB: without this limit, a
  /// file without newlines, such as a device, would fill the memory.
  std::optional<std::string> next(int wait_ms);
  bool at_end() const { return is_closed_ && buffer_.empty(); }
  bool is_terminal() const;
  /// The position behind the last line that was returned, counted from the first byte that was
  /// read.
  int64_t offset() const { return offset_; }
  /// Whether the last line had a newline; only the last one of a file may have none.
  bool had_newline() const { return had_newline_; }

  /// Counts more lines of a regular file, for a progress bar; takes about a millisecond. Returns
  /// the number of lines that are not blank once all are counted. For a pipe it never returns a
  /// number.
  std::optional<int64_t> count_lines();

 private:
  std::optional<std::string> take(size_t length, bool newline);

  std::string name_;
  FileDescriptor file_;
  std::string buffer_;   // bytes that were read and not returned
  size_t begin_ = 0;     // where the next line begins in buffer_
  size_t searched_ = 0;  // buffer_ has no newline between begin_ and this position
  int64_t offset_ = 0;
  bool had_newline_ = true;
  bool is_closed_ = false;  // nothing more can be read

  // The state of count_lines().
  bool is_regular_ = false;
  bool counted_all_ = false;
  bool blank_ = true;  // whether the line that is being counted is blank so far
  int64_t count_offset_ = 0, num_lines_ = 0;
};

/// Whether a line contains only white space.
bool is_blank(std::string_view line);

}  // namespace nanovllm
