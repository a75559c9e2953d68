#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nanovllm {

/// Where a file of results has zero bytes. After a power failure, a file system may show zeros in
/// place of what was written last; the text of a result has none.
struct Zeros {
  std::string_view result_start;  ///< how a result begins
  int64_t line = -1;              ///< where the line with the first one begins; -1: there is none
  std::string start = {};         ///< how that line begins: at most as many bytes as result_start
  int64_t num_text = 0;     ///< bytes after the first zero that are neither zeros nor newlines
  bool is_text = true;      ///< none of those is a control character
  bool has_result = false;  ///< a result begins after the first zero

  /// Whether the file was one of results before the failure. `has_results`: there are results
  /// before the line. If false, it may be any file with zeros, such as an image of a disk.
  bool is_damaged_result(bool has_results) const;
};

/// Reads a regular file once. A hole of a sparse file counts as one zero, so a large one takes no
/// time. `result_start`: how each result begins. Throws UserError that names `path` if the file
/// cannot be read.
Zeros find_zeros(int file, const std::string& path, std::string_view result_start);

}  // namespace nanovllm
