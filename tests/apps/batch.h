#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "binary.h"

/// What the tests of prompts files and of `generate --output` have in common.
namespace nanovllm::testing {

inline std::vector<int> indices(const std::vector<Json>& results) {
  std::vector<int> all;
  for (const Json& result : results) all.push_back(result["index"].get<int>());
  return all;
}

/// Greedy, so that the answers of two runs are equal.
inline std::vector<std::string> generate(const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      "generate", kTinyTales,      "--dtype", "float32", "--kv-cache-memory-bytes",
      "50000000", "--temperature", "0"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

/// A path in a folder of its own.
class TempFile {
 public:
  explicit TempFile(const std::string& text = "") {
    folder_ = ::testing::TempDir() + "batch_XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << folder_;
    if (!text.empty()) write(text);
  }
  ~TempFile() { std::filesystem::remove_all(folder_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  std::string path() const { return folder_ + "/lines.jsonl"; }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  std::string read() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string folder_;
};

}  // namespace nanovllm::testing
