#include "tests/trace_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "process.h"
#include "tests/json_file.h"

namespace nanovllm::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TraceOption : public ::testing::Test {
 protected:
  ~TraceOption() override { std::filesystem::remove(path_); }
  const std::string path_ =
      ::testing::TempDir() + "nanovllm_trace_" + std::to_string(::getpid()) + ".json";
};

TEST_F(TraceOption, WritesStepsAndRequests) {
  const Result r = run({"generate", kTinyTales, "--prompt", "Once upon a time", "--prompt", "The",
                        "--max-tokens", "5", "--ignore-eos", "--json", "--trace", path_});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.err, "");
  TraceEvents trace = TraceEvents::read(path_);
  EXPECT_EQ(trace.tracks.at("device").size(), 5);
  EXPECT_EQ(trace.sum("host", "engine step", "generated_tokens"), 10);
  for (const char* request : {"request 0", "request 1"})
    EXPECT_THAT(trace.phases(request), ElementsAre("queue", "prefill", "decode"));
  EXPECT_THAT(trace.errors, IsEmpty());
}

TEST_F(TraceOption, PathThatCannotBeWrittenIsRefusedBeforeTheModelIsLoaded) {
  const Result r = run({"generate", "/no/such/model", "--prompt", "x", "--trace", "/no/such/t"});
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.num_error_lines(), 1) << r.err;
  EXPECT_EQ(r.out, "");
  const Result wrong = run({"bench", "throughput", kTinyTales, "--trace", "/no/such/t"});
  EXPECT_EQ(wrong.status, 2);
  EXPECT_EQ(wrong.err, "error: cannot write the trace to /no/such/t: No such file or directory\n");
}

TEST_F(TraceOption, FullDiskEndsTheTraceAndNotTheRun) {
  const std::vector<std::string> args = {"generate",      kTinyTales, "--prompt", "The",
                                         "--temperature", "0",        "--json"};
  std::vector<std::string> traced = args;
  traced.insert(traced.end(), {"--trace", "/dev/full"});
  const Result r = run(traced);
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.num_error_lines(), 1) << r.err;
  EXPECT_THAT(r.err, HasSubstr("the trace ends early: cannot write to /dev/full: No space left"));
  EXPECT_EQ(r.out, run(args).out);
}

// A process that is killed leaves whole events, and slices without an end for what was running.
// After Ctrl-C the file is complete.
TEST_F(TraceOption, ProcessThatIsKilledOrInterruptedLeavesAReadableFile) {
  for (const int number : {SIGKILL, SIGINT}) {
    const Process process = {.when_started = [&](pid_t pid) {
      for (int i = 0; i < 3000; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        std::error_code ignored;
        if (std::filesystem::file_size(path_, ignored) > 20'000 && !ignored) break;
      }
      ::kill(pid, number);
    }};
    const Result r = process.run({"bench", "throughput", kTinyTales, "--trace", path_});
    const bool killed = number == SIGKILL;
    EXPECT_EQ(r.status, killed ? 1000 + SIGKILL : 130) << r.err;
    TraceEvents trace = TraceEvents::read(path_);
    EXPECT_THAT(trace.phases("request 0"), Contains("prefill"));
    EXPECT_EQ(trace.tracks.at("request 0").back().end == -1, killed);
    EXPECT_THAT(trace.errors, IsEmpty());
    EXPECT_EQ(is_json(read_file(path_, size_t{64} << 20)), !killed);
    std::filesystem::remove(path_);
  }
}

}  // namespace
}  // namespace nanovllm::testing
