#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/base/system/input_file.h"

namespace nanovllm::hub {

/// How the hub names the contents of a file: large files (Git LFS) by their SHA-256, and the others
/// as git does, by the SHA-1 of "blob SIZE", a zero byte and the contents.
enum class ChecksumKind { kSha256, kGitBlob };

/// The kind of checksum that the digits are; nothing if they are neither, such as the ETag of
/// another server.
std::optional<ChecksumKind> checksum_kind(std::string_view digits);

/// The checksum of a file of `size` bytes that comes in pieces.
class Checksum {
 public:
  Checksum(ChecksumKind kind, uint64_t size);
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::string_view bytes);
  /// Adds the first bytes of a file. `on_progress` gets the number of those that were added; what
  /// it throws ends the call.
  void add_file(const InputFile& file, uint64_t bytes,
                const std::function<void(uint64_t)>& on_progress);
  /// The hexadecimal digits, in lower case. Nothing may be added afterwards.
  std::string digits();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nanovllm::hub
