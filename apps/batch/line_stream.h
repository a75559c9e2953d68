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

  /// The next line without its newline, or nothing if no whole line has come yet or at_end(). Waits
  /// at most `wait_ms` milliseconds for more of it; a signal ends the wait. Throws UserError that
  /// names the file if it cannot be read, or if a line has more than 256 MiB: without this limit, a
  /// file without newlines, such as a device, would fill the memory.
  std::optional<std::string> next(int wait_ms);
  bool at_end() const { return is_closed_ && buffer_.empty(); }
  bool is_terminal() const;
  /// Where the line after the last one begins, counted from the first byte that was read.
  int64_t offset() const { return offset_; }
  /// Whether the last line had a newline; only the last one of a file may have none.
  bool had_newline() const { return had_newline_; }

  /// Counts more of a regular file's lines without reading them, for a progress bar; takes about a
  /// millisecond. Returns the number of lines that are not blank once all are counted, and never
  /// for a pipe.
  std::optional<int64_t> count_lines();

 private:
  std::optional<std::string> take(size_t length, bool newline);

  std::string name_;
  FileDescriptor file_;
  std::string buffer_;   // what was read and not returned
  size_t begin_ = 0;     // of the next line in buffer_
  size_t searched_ = 0;  // buffer_ has no newline between begin_ and here
  int64_t offset_ = 0;
  bool had_newline_ = true;
  bool is_closed_ = false;  // nothing more can be read

  // The count of lines.
  bool is_regular_ = false;
  bool counted_all_ = false;
  bool blank_ = true;  // the line in which the count stands is blank so far
  int64_t count_offset_ = 0, num_lines_ = 0;
};

/// Whether a line contains only white space.
bool is_blank(std::string_view line);

}  // namespace nanovllm
