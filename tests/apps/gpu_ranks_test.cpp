// The binary over two GPUs when a process of it is killed: while it starts, connects the GPUs,
// loads, and computes.
#include <gtest/gtest.h>

#include <thread>

#include "process.h"
#include "tests/children.h"
#include "tests/gpus.h"

namespace nanovllm::testing {
namespace {

struct GpuKill {
  friend void PrintTo(const GpuKill& k, std::ostream* out) { *out << k.name; }
  std::string name, shape;
  int victim;  // its rank
  int signal;
};

class GpuRanksKilled : public ::testing::TestWithParam<GpuKill> {
 protected:
  void SetUp() override {
    if (num_gpus() < 2) GTEST_SKIP() << "needs two GPUs; " << num_gpus() << " are here";
  }
};

TEST_P(GpuRanksKilled, AllProcessesEndSoon) {
  const GpuKill& k = GetParam();
  const std::string model = std::string(NANOVLLM_SOURCE_DIR) + "/bench/shapes/" + k.shape;
  for (const int milliseconds :
       {50, 200, 400, 600, 700, 800, 900, 1000, 1100, 1300, 1600, 2000, 3000, 4500}) {
    SCOPED_TRACE(milliseconds);
    std::vector<pid_t> workers;
    std::chrono::steady_clock::time_point killed;
    Process process;
    process.when_started = [&](pid_t pid) {
      const auto start = std::chrono::steady_clock::now();
      workers = wait_for_children(pid, 1);
      std::this_thread::sleep_until(start + std::chrono::milliseconds(milliseconds));
      ASSERT_EQ(workers.size(), 1u);
      ::kill(k.victim == 0 ? pid : workers[0], k.signal);
      killed = std::chrono::steady_clock::now();
    };
    const Result result = process.run(
        {"bench", "throughput", model, "--load-format", "dummy", "--warmup", "-tp", "2"});
    EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(10));
    if (k.victim == 0) {
      EXPECT_EQ(result.status, 1000 + k.signal) << result.err;
    } else {
      EXPECT_EQ(result.status, 1) << result.err;
      EXPECT_NE(result.err.find("the process of rank 1 was ended by signal"), std::string::npos)
          << result.err;
    }
    expect_gone(workers);
  }
}

INSTANTIATE_TEST_SUITE_P(TwoGpus, GpuRanksKilled,
                         ::testing::Values(GpuKill{"worker_8b", "Qwen3-8B", 1, SIGKILL},
                                           GpuKill{"worker_06b", "Qwen3-0.6B", 1, SIGKILL},
                                           GpuKill{"rank0_06b", "Qwen3-0.6B", 0, SIGKILL}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nanovllm::testing
