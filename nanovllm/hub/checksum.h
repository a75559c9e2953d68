#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace nanovllm::hub {

/// How the hub names the contents of a file: large files (Git LFS) by their SHA-256, and the others
/// as git does, by the SHA-1 of "blob SIZE", a zero byte and the contents.
enum class ChecksumKind { kSha256, kGitBlob };

/// The checksum of a file of `size` bytes that comes in pieces.
class Checksum {
 public:
  Checksum(ChecksumKind kind, uint64_t size);
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  void add(std::string_view bytes);
  /// The hexadecimal digits, in lower case. Nothing may be added afterwards.
  std::string digits();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace nanovllm::hub
