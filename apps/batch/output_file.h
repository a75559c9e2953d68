#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "apps/batch/output_json.h"
#include "apps/prompts.h"
#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

/// The file of `generate --output`: results as JSON lines. A run adds results to those of earlier
/// runs, in any order; if several have the same index, the last one counts.
class OutputFile {
 public:
  /// Opens the file, or creates it, and reads the results that it holds. The beginning of a line
  /// that a killed run left at the end is removed. Throws UserError if another process has the file
  /// open for this, or if it contains anything but results.
  explicit OutputFile(const std::string& path);

  /// Whether the file holds the result of this prompt. A prompt that was refused is not held if it
  /// is a good one by now. Throws UserError if the file holds the result of another prompt under
  /// this index; `prompt.token_ids` and the fields id and custom_id are compared.
  bool holds(int64_t index, const Prompt& prompt) const;
  /// How many prompts it holds the results of. Refused lines do not count: they may be mended.
  int64_t num_results() const;
  const std::string& path() const { return path_; }

  Outcome outcome(int64_t index) const { return held_.at(index).outcome; }

  /// Appends a line, which must end with a newline. If that fails, as on a full disk, removes what
  /// was written of it and throws std::runtime_error.
  void append(std::string_view line);

 private:
  struct Held {
    uint64_t ids_hash = 0;     // of prompt_token_ids; 0 if the line has none
    uint64_t fields_hash = 0;  // of id and custom_id
    Outcome outcome = Outcome::kAnswered;
  };
  void read_held();
  void add_held(const std::string& line, int64_t line_number);

  std::string path_;
  FileDescriptor file_;
  bool is_regular_ = false;  // no device and no pipe
  int64_t size_ = 0;
  std::unordered_map<int64_t, Held> held_;
};

}  // namespace nanovllm
