// Tests the worker's side of the ranks in a child process, and rank 0's side with workers that are
// scripts. tests/llm/ranks_test.cpp tests complete engines with several ranks.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>

#include "nanovllm/base/error.h"
#include "nanovllm/runtime/ranks/executor.h"
#include "nanovllm/runtime/ranks/worker_processes.h"

namespace nanovllm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kLlama = std::string(NANOVLLM_SOURCE_DIR) + "/tests/variants/llama";

/// Runs rank 1 of two on `model` in a child process. Returns its exit status.
int run_rank_1(RankMemory& memory, const std::string& model) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    EngineConfig config;
    config.device = "cpu";
    config.threads = 2;
    config.tensor_parallel_size = 2;
    config.kv_cache_memory_bytes = 64 << 20;
    std::exit(run_worker(model, config, 1, memory.fd(), ends[1]));
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  for (const int fd : ends) ::close(fd);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(Worker, UserErrorReachesRank0AsAUserError) {
  RankMemory memory(2);
  EXPECT_EQ(run_rank_1(memory, "/nowhere"), 1);
  EXPECT_THAT([&] { memory.ranks().barrier(); }, ThrowsMessage<UserError>(HasSubstr("/nowhere")));
}

TEST(Worker, EndsIfTheRanksWereAborted) {
  RankMemory memory(2);
  memory.ranks().abort("rank 0 is out of ink");
  EXPECT_EQ(run_rank_1(memory, kLlama), 1);
  EXPECT_THAT([&] { memory.ranks().barrier(); },
              ThrowsMessage<EngineDead>(HasSubstr("rank 0 is out of ink")));
}

TEST(Worker, EndsBeforeItReadsTheMemoryOfAnotherBuild) {
  RankMemory memory(2);
  const std::array<uint64_t, 2> other = {1, kBuildChecksum + 1};
  ASSERT_EQ(::pwrite(memory.fd(), other.data(), sizeof other, 0),
            static_cast<ssize_t>(sizeof other));
  EXPECT_EQ(run_rank_1(memory, kLlama), kExitOtherBuild);
  EXPECT_FALSE(memory.ranks().aborted());
}

/// The reason that rank 0 reports if a worker is this script. $parent is the worker's socket.
std::string reason_of(const std::string& script, bool& is_user_error) {
  // The name contains the process id, because tests run at the same time.
  const std::string path = fmt::format("{}worker_test_{}.sh", ::testing::TempDir(), ::getpid());
  std::ofstream(path) << "#!/bin/bash\nparent=${@: -1}\n" << script << "\n";
  ::chmod(path.c_str(), 0700);
  WorkerProcesses workers(path, {}, 2, /*step_timeout=*/1);
  std::string reason;
  try {
    for (;;) {
      workers.ranks().barrier();  // no other rank reaches it
      ADD_FAILURE() << "a barrier of two ended with one rank";
    }
  } catch (const UserError& e) {
    is_user_error = true;
    reason = e.what();
  } catch (const EngineDead& e) {
    is_user_error = false;
    reason = e.what();
  }
  ::unlink(path.c_str());
  return reason;
}

TEST(WorkerProcesses, EndOfAWorkerIsReported) {
  bool is_user_error = true;
  EXPECT_EQ(reason_of("exit 7", is_user_error), "the process of rank 1 ended with status 7");
  EXPECT_FALSE(is_user_error);
  EXPECT_THAT(reason_of("kill -USR1 $$", is_user_error), HasSubstr("ended by signal 10"));
  EXPECT_FALSE(is_user_error);
  EXPECT_THAT(reason_of("exit 3", is_user_error), HasSubstr("is not from the same build"));
  EXPECT_TRUE(is_user_error);
}

TEST(WorkerProcesses, MessageOfAWorkerIsTheReason) {
  bool is_user_error = false;
  EXPECT_EQ(reason_of("printf 'no such option' >&$parent; exit 2", is_user_error),
            "rank 1: no such option");
  EXPECT_TRUE(is_user_error);
  EXPECT_EQ(reason_of("printf 'out of memory' >&$parent; exit 1", is_user_error),
            "rank 1: out of memory");
  EXPECT_FALSE(is_user_error);
}

// It gets five seconds to end by itself.
TEST(WorkerProcesses, WorkerThatDoesNotStopIsKilled) {
  const auto start = std::chrono::steady_clock::now();
  {
    WorkerProcesses workers("/bin/sh", {"-c", "exec sleep 1000"}, 2, /*step_timeout=*/60);
    workers.set_ready();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // no child is left
}

TEST(WorkerProcesses, WorkerThatLoadsForeverHangs) {
  bool is_user_error = true;
  EXPECT_EQ(reason_of("exec sleep 1000", is_user_error),
            "no rank made progress for 10 s (--step-timeout)");
  EXPECT_FALSE(is_user_error);
}

}  // namespace
}  // namespace nanovllm
