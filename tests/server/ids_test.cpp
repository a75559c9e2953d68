#include "nanovllm/server/http/ids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>
#include <vector>

namespace nanovllm::server {
namespace {

TEST(NewId, HasThePrefixAnd24HexadecimalDigits) {
  EXPECT_THAT(new_id("chatcmpl-"), ::testing::MatchesRegex("chatcmpl-[0-9a-f]*"));
  EXPECT_EQ(new_id("call_").size(), 29);
}

TEST(NewId, IsUniqueInAllThreads) {
  constexpr int kNumThreads = 4, kNumIds = 2000;
  std::vector<std::vector<std::string>> ids(kNumThreads);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& own : ids)
    threads.emplace_back([&own] {
      for (int i = 0; i < kNumIds; ++i) own.push_back(new_id(""));
    });
  for (std::thread& thread : threads) thread.join();
  std::set<std::string> all;
  for (const std::vector<std::string>& own : ids) all.insert(own.begin(), own.end());
  EXPECT_EQ(all.size(), kNumThreads * kNumIds);
}

}  // namespace
}  // namespace nanovllm::server
