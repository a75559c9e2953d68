#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/error.h"
#include "nanovllm/base/json.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace nanovllm {

inline const std::string kTinyTales = std::string(NANOVLLM_SOURCE_DIR) + "/models/tiny-tales";
/// Our own tokenizers and expected results; fixtures/README.md says how they were made.
inline const std::string kFixtures = std::string(NANOVLLM_SOURCE_DIR) + "/tests/text/fixtures";
/// Published tokenizers, which are not part of this repository. Tests that need them are skipped if
/// the folder is missing.
inline const std::string kSharedData = std::string(NANOVLLM_SOURCE_DIR) + "/../shared/data";

inline bool has_shared(const std::string& name) {
  return std::filesystem::exists(kSharedData + "/" + name);
}

inline std::vector<Json> read_json_lines(const std::string& path) {
  std::ifstream in(path);
  std::vector<Json> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(parse_json(line, path));
  return rows;
}

/// Pseudorandom numbers (Steele et al., SplitMix64) that are the same with every standard library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  size_t below(size_t n) { return static_cast<size_t>(next() % n); }

 private:
  uint64_t state_;
};

/// The error of Tokenizer::parse() for this file, which must be one line that begins with its name.
inline std::string error_of(const std::string& json) {
  try {
    Tokenizer::parse(json, "t.json");
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(), ::testing::HasSubstr("t.json"));
    EXPECT_EQ(std::string_view(e.what()).find('\n'), std::string_view::npos);
    return e.what();
  }
  return "no error";
}

/// A tokenizer.json with one field replaced or removed.
struct Fields {
  std::string added_tokens = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  std::string post_processor = "null";
  std::string decoder = R"({"type": "ByteLevel"})";
  std::string vocab = R"({"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "Ġ": 5, "Ġa": 6})";
  std::string merges = R"(["a b", "ab c", "Ġ a"])";
  std::string model = R"("type": "BPE")";

  std::string json() const {
    return R"({"added_tokens": )" + added_tokens + R"(, "normalizer": )" + normalizer +
           R"(, "pre_tokenizer": )" + pre_tokenizer + R"(, "post_processor": )" + post_processor +
           R"(, "decoder": )" + decoder + R"(, "model": {)" + model + R"(, "vocab": )" + vocab +
           R"(, "merges": )" + merges + "}}";
  }
  std::unique_ptr<const Tokenizer> parse() const { return Tokenizer::parse(json(), "t.json"); }
};

}  // namespace nanovllm
