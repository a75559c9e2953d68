#include "nanovllm/base/system/clock.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <array>
#include <chrono>
#include <thread>

namespace nanovllm {
namespace {

TEST(Clock, KnowsWhenTheProcessStarted) {
  const double before = seconds_since_process_start();
  EXPECT_GE(before, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_GE(seconds_since_process_start(), before + 0.05);
}

TEST(Clock, NameOfTheProgramMayLookLikeFields) {
  std::array<char, 16> name{};
  ASSERT_EQ(::prctl(PR_GET_NAME, name.data()), 0);
  const double before = seconds_since_process_start();
  ASSERT_EQ(::prctl(PR_SET_NAME, "a) S 1 (b) 2"), 0);
  const double after = seconds_since_process_start();
  ::prctl(PR_SET_NAME, name.data());
  EXPECT_GE(after, before);
  EXPECT_LT(after, before + 60);
}

}  // namespace
}  // namespace nanovllm
