#include "nanovllm/ops/cpu/machine/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

namespace nanovllm::cpu {
namespace {

TEST(ParallelFor, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (int64_t job = 0; job < 3000; ++job) {
      const int64_t num_tasks = job % 17;
      std::vector<int> runs(
          static_cast<size_t>(num_tasks));  // not atomic: only one task writes each element
      std::atomic<bool> thread_in_range = true;
      parallel_for(num_tasks, [&](int64_t task, int thread) {
        ++runs[static_cast<size_t>(task)];
        if (thread < 0 || thread >= threads) thread_in_range = false;
      });
      for (const int n : runs) ASSERT_EQ(n, 1);
      ASSERT_TRUE(thread_in_range);
      if (job % 500 == 0)
        std::this_thread::sleep_for(
            std::chrono::milliseconds(2));  // meanwhile the helper threads go to sleep
    }
  }
  set_num_threads(1);
}

// A task ends only when all tasks have begun, so with fewer threads the test would hang.
TEST(ParallelFor, TasksRunAtTheSameTime) {
  for (const int threads : {2, 3, 8}) {
    set_num_threads(threads);
    for (int job = 0; job < 20; ++job) {
      std::atomic<int> num_begun = 0;
      std::vector<int> seen(static_cast<size_t>(threads));  // how many tasks each thread ran
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      parallel_for(threads, [&](int64_t, int thread) {
        ++num_begun;
        ++seen[static_cast<size_t>(thread)];
        while (num_begun < threads && std::chrono::steady_clock::now() < end)
          std::this_thread::yield();
      });
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "tasks wait for each other in turn";
      for (const int n : seen) ASSERT_EQ(n, 1);
    }
  }
  set_num_threads(1);
  EXPECT_EQ(num_threads(), 1);
}

TEST(ParallelFor, CallersDoNotShareHelpers) {
  std::vector<std::jthread> callers;
  std::atomic<int64_t> sum = 0;
  for (int i = 0; i < 3; ++i)
    callers.emplace_back([&] {
      set_num_threads(2);
      for (int job = 0; job < 500; ++job) parallel_for(8, [&](int64_t task, int) { sum += task; });
    });
  callers.clear();
  EXPECT_EQ(sum, 3 * 500 * 28);
}

TEST(ParallelFor, ExceptionsReachTheCaller) {
  set_num_threads(3);
  for (int job = 0; job < 100; ++job)
    EXPECT_THROW(parallel_for(9,
                              [](int64_t task, int) {
                                if (task == 4) throw std::runtime_error("4");
                              }),
                 std::runtime_error);
  int64_t done = 0;
  parallel_for(1, [&](int64_t, int) { ++done; });
  EXPECT_EQ(done, 1);
  set_num_threads(1);
}

}  // namespace
}  // namespace nanovllm::cpu
