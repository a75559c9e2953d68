#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "apps/batch/result_format.h"
#include "apps/batch/zeros.h"
#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

/// The file of `generate --output`: results as JSON lines. A run adds results to those of earlier
/// runs, in any order; if several have the same index, the last one counts.
class OutputFile {
 public:
  /// Opens the file, or creates it, and reads the results that it holds. Removes incomplete results
  /// that a killed run or a power failure left at its end: the beginning of a line, and everything
  /// from the line on in which the file system left zero bytes. Throws UserError if another process
  /// has the file open for this, or if it contains anything but results.
  OutputFile(const std::string& path, const ResultFormat& format);

  /// Whether the file holds the result of this prompt. The refusal of a line does not count if the
  /// line has been corrected since. Throws UserError if the file holds the result of another prompt
  /// under this index.
  bool holds(int64_t index, const ResultKey& prompt) const;
  /// For how many prompts it holds results. Refused lines do not count, since they may be
  /// corrected.
  int64_t num_results() const;
  const std::string& path() const { return path_; }

  Outcome outcome(int64_t index) const { return held_.at(index).outcome; }

  /// Appends a line, which must end with a newline. If that fails, as on a full disk, removes the
  /// part that was written and throws std::runtime_error.
  void append(std::string_view line);
  /// Waits until everything is on the disk, so that a power failure cannot take it away. append()
  /// calls this every few seconds. Throws std::runtime_error if the disk fails.
  void sync();
  /// How many bytes after a power failure were removed; 0 without one.
  int64_t num_lost_bytes() const { return num_lost_bytes_; }

 private:
  void read_held();
  void remove_damage(const Zeros& zeros, int64_t line_number);
  void cut(int64_t size);
  void add_held(const std::string& line, int64_t line_number);

  std::string path_;
  const ResultFormat& format_;
  FileDescriptor file_;
  bool is_regular_ = false;  // the file is no device and no pipe
  int64_t size_ = 0, num_lost_bytes_ = 0;
  double last_sync_ = 0;  // steady_seconds()
  std::unordered_map<int64_t, HeldResult> held_;
};

}  // namespace nanovllm
