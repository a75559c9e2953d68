#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nanovllm {

/// A whole file mapped read-only. Throws UserError that names the path. Movable; unmaps at its end.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const char* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view view() const { return {data_, size_}; }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

/// The whole text of a file. Throws UserError that names the path and the system's reason.
std::string read_file(const std::string& path);

}  // namespace nanovllm
