#pragma once

#include <cstdint>
#include <string>

namespace nanovllm {

/// Where a backend keeps what it measured, for later processes.
struct ChoiceCache {
  std::string folder = {};  ///< empty: nowhere
  uint64_t build = 0;       ///< a checksum of this program; another build does not use them
};

/// The choices of an Autotuner in the user's cache folder, for later processes. There is a file for
/// each environment: everything else that a choice depends on (GPU, driver, libraries, build,
/// number of ranks). Several processes may write it at the same time; the last one wins. Nothing
/// here throws: a choice that is not kept is only measured again.
class ChoiceFile {
 public:
  /// With an empty `folder` nothing is read or written. `environment` may have several lines.
  ChoiceFile(const std::string& folder, const std::string& environment);

  const std::string& path() const { return path_; }
  /// The choices of the file. If it is damaged, or of another environment, or cannot be read, this
  /// says so in one line of the log, and returns an empty text as if there were none.
  std::string read() const;
  /// Replaces the file in one step. If that fails, one line of the log says why.
  void write(const std::string& choices) const;

 private:
  std::string folder_, header_, path_;
};

}  // namespace nanovllm
