#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "nanovllm/base/error.h"

/// libFuzzer calls this for each input, and replay.cpp for each seed.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace nanovllm {

inline const std::string kTinyTales = std::string(NANOVLLM_SOURCE_DIR) + "/models/tiny-tales";

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Removes the part before the next line of three dashes and this line from `input`, and returns
/// the part; all of `input` if there is no such line. So people can read and write the seeds.
inline std::string_view take_part(std::string_view& input) {
  constexpr std::string_view kLine = "\n---\n";
  const size_t end = input.find(kLine);
  const std::string_view part = input.substr(0, end);
  input.remove_prefix(end == std::string_view::npos ? input.size() : end + kLine.size());
  return part;
}

/// Calls `f`. For bad input it may throw only UserError; any other exception ends the program,
/// which is a finding.
template <class F>
void expect_user_errors_only(F&& f) {
  try {
    f();
  } catch (const UserError&) {
  }
}

/// A folder in TMPDIR whose files contain the input. The destructor removes it; but libFuzzer ends
/// without destructors, so run.sh makes the TMPDIR and removes it.
class InputFolder {
 public:
  InputFolder() {
    std::string path = std::filesystem::temp_directory_path() / "nanovllm_fuzz_XXXXXX";
    if (mkdtemp(path.data()) == nullptr) std::abort();
    path_ = path;
  }
  InputFolder(const InputFolder&) = delete;
  InputFolder& operator=(const InputFolder&) = delete;
  ~InputFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path() const { return path_; }
  void write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary) << bytes;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace nanovllm
