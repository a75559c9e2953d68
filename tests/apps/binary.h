#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "nanovllm/base/json.h"
#include "process.h"

/// What the tests of the binary's commands have in common.
namespace nanovllm::testing {

inline std::vector<Json> lines(const std::string& text) {
  std::vector<Json> all;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) all.push_back(Json::parse(line));
  return all;
}

inline std::vector<std::string> keys(const Json& json) {
  std::vector<std::string> names;
  for (const auto& [key, value] : json.items()) names.push_back(key);
  return names;
}

/// One clear line on stderr, nothing on stdout, exit status 2.
inline void expect_refused(const std::vector<std::string>& args, const std::string& what) {
  const Result r = run(args);
  EXPECT_EQ(r.status, 2) << r.err;
  EXPECT_EQ(r.num_error_lines(), 1) << r.err;
  EXPECT_THAT(r.err, ::testing::HasSubstr(what));
  EXPECT_EQ(r.out, "");
}

/// Two ids are allowed, and after the first of them none is. A choice that draws the first one ends
/// with an error; with this seed these are the last two of four choices.
inline const std::string kTwoOfFourFail =
    R"({"prompt": "Once", "sampling_params": {"allowed_token_ids": [16, 17], "bad_words": ["11", "12"], )"
    R"("max_tokens": 2, "temperature": 100, "ignore_eos": true, "n": 4, "seed": 5}})"
    "\n";

}  // namespace nanovllm::testing
