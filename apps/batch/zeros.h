#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm {

/// The zero bytes of a file of results. After a power failure, a file system may show zeros in
/// place of the bytes that were written last; the text of a result has none.
struct Zeros {
  std::string_view result_start;  ///< the beginning of a result
  int64_t line = -1;              ///< where the line with the first zero begins; -1: there is none
  std::string start = {};         ///< the beginning of that line, as long as result_start at most
  int64_t num_text = 0;     ///< bytes after the first zero that are neither zeros nor newlines
  bool is_text = true;      ///< none of those bytes is a control character
  bool has_result = false;  ///< a result begins after the first zero

  /// Whether the file was a file of results before the failure. If not, it may be any file with
  /// zeros, such as an image of a disk. `has_results` says that there are results before the line.
  bool is_damaged_result(bool has_results) const;
};

/// Reads a regular file once. A hole of a sparse file counts as one zero, so a large hole takes no
/// time. Each result begins with `result_start`. Throws UserError that names `path` if the file
/// cannot be read.
Zeros find_zeros(int file, const std::string& path, std::string_view result_start);

}  // namespace nanovllm
