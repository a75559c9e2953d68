#include "nanovllm/base/strings/suggestion.h"

#include <gtest/gtest.h>

#include <vector>

namespace nanovllm::testing {
namespace {

TEST(Suggestion, IsTheNearestName) {
  const std::vector<std::string> options = {"--temperature",
                                            "--top-p",
                                            "--top-k",
                                            "--max-tokens",
                                            "--max-model-len",
                                            "--max-num-batched-tokens",
                                            "--n"};
  const auto nearest = [&](std::string_view given) { return nearest_name(given, options); };
  EXPECT_EQ(nearest("--temprature"), "--temperature");
  EXPECT_EQ(nearest("--temp"), "--temperature");
  EXPECT_EQ(nearest("-temperature"), "--temperature");
  EXPECT_EQ(nearest("--max_num_batched_tokens"), "--max-num-batched-tokens");
  EXPECT_EQ(nearest("--Max-Tokens"), "--max-tokens");
  EXPECT_EQ(nearest("--max-tokesn"), "--max-tokens");
  EXPECT_EQ(nearest("--topk"), "--top-k");
  for (const char* far : {"--verbose", "-x", "", "---", "--stream"}) EXPECT_EQ(nearest(far), "");
  EXPECT_EQ(nearest(std::string(1 << 20, 'x')), "");
}

TEST(Suggestion, IsASentenceOrNothing) {
  const std::vector<std::string> commands = {"generate", "chat", "info"};
  EXPECT_EQ(did_you_mean("chta", commands), "; did you mean 'chat'?");
  EXPECT_EQ(did_you_mean("gen", commands), "; did you mean 'generate'?");
  EXPECT_EQ(did_you_mean("fly", commands), "");
  const std::vector<std::string> devices = {"auto", "cpu", "cuda"};
  EXPECT_EQ(did_you_mean("gpu", devices), "");
  EXPECT_EQ(did_you_mean("cup", devices), "; did you mean 'cpu'?");
  // A name that differs only in '-' and '_' is nearer than any other.
  const std::vector<std::string> options = {"--top-p", "--top-k"};
  EXPECT_EQ(did_you_mean("--top_k", options), "; did you mean '--top-k'?");
}

}  // namespace
}  // namespace nanovllm::testing
