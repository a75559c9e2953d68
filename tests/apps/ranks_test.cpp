// The binary with -tp: its output, and that no process remains when one of its processes is killed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "nanovllm/base/json.h"
#include "process.h"
#include "tests/children.h"

namespace nanovllm::testing {
namespace {

std::vector<Json> llama_goldens() {
  std::ifstream file(kSource + "/tests/goldens/llama.jsonl");
  std::vector<Json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(parse_json(line, "llama"));
  return rows;
}

std::vector<std::string> arguments(int world) {
  return {"generate",
          kLlama,
          "--prompts-file",
          "-",
          "--json",
          "--temperature",
          "0",
          "--dtype",
          "float32",
          "--max-tokens",
          "64",
          "--device",
          "cpu",
          "-tp",
          std::to_string(world)};
}

std::string prompts_of(const std::vector<Json>& rows, int times = 1) {
  std::string lines;
  for (int i = 0; i < times; ++i)
    for (const Json& row : rows)
      lines += Json{{"prompt_token_ids", row["prompt_token_ids"]}}.dump() + "\n";
  return lines;
}

void expect_goldens(const Result& result, const std::vector<Json>& rows) {
  EXPECT_EQ(result.status, 0) << result.err;
  std::istringstream lines(result.out);
  for (const Json& row : rows) {
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    if (!row.value("tie", false)) {
      EXPECT_EQ(parse_json(line, "answer")["token_ids"], row["greedy_token_ids"]);
    }
  }
}

/// A run that would take minutes. Its prompts are in a file, because nobody reads a pipe before the
/// model is loaded.
class LongRun {
 public:
  LongRun() { std::ofstream(path_) << prompts_of(llama_goldens(), 100); }
  ~LongRun() { std::filesystem::remove(path_); }

  Result run(const Process& process, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> args = {
        "generate",     kLlama, "--prompts-file", path_, "--json", "--ignore-eos",
        "--max-tokens", "450",  "--device",       "cpu", "-tp",    "3"};
    args.insert(args.end(), more.begin(), more.end());
    return process.run(args);
  }

 private:
  std::string path_ = ::testing::TempDir() + "ranks_test_" + std::to_string(getpid()) + ".jsonl";
};

TEST(Ranks, ProcessesGiveTheReferenceTokens) {
  const std::vector<Json> rows = llama_goldens();
  for (const int world : {2, 3, 4}) expect_goldens(run(arguments(world), prompts_of(rows)), rows);
}

TEST(Ranks, TwoEnginesAtOnceAreIndependent) {
  const std::vector<Json> rows = llama_goldens();
  Result first, second;
  std::thread other([&] { first = run(arguments(2), prompts_of(rows)); });
  second = run(arguments(3), prompts_of(rows));
  other.join();
  expect_goldens(first, rows);
  expect_goldens(second, rows);
}

TEST(Ranks, UnreadableModelIsAOneLineErrorWithStatus2) {
  const Result missing = run({"generate", "/nowhere", "--prompt", "a", "-tp", "2"});
  EXPECT_EQ(missing.status, 2);
  EXPECT_EQ(missing.num_error_lines(), 1) << missing.err;
  // All ranks find the error at the same time, when they read the weights.
  const std::string folder =
      ::testing::TempDir() + "ranks_without_weights_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(kLlama + "/config.json", folder + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  const Result empty =
      run({"generate", folder, "--prompts-file", "-", "--device", "cpu", "-tp", "3"},
          "{\"prompt_token_ids\": [1]}\n");
  std::filesystem::remove_all(folder);
  EXPECT_EQ(empty.status, 2);
  EXPECT_EQ(empty.num_error_lines(), 1) << empty.err;
  EXPECT_NE(empty.err.find("no weights"), std::string::npos) << empty.err;
}

// The output must not be written to the memory of the ranks, whose descriptor could otherwise have
// the closed stream's number.
TEST(Ranks, ClosedStandardStreamsAreNotReused) {
  const std::vector<Json> rows = llama_goldens();
  const std::string prompts = ::testing::TempDir() + "closed_streams_" + std::to_string(::getpid());
  std::ofstream(prompts) << prompts_of(rows);
  std::vector<std::string> args = arguments(2);
  std::replace(args.begin(), args.end(), std::string("-"), prompts);
  for (const std::vector<int>& closed :
       std::vector<std::vector<int>>{{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}}) {
    const bool has_stdout = std::find(closed.begin(), closed.end(), 1) == closed.end();
    const bool has_stderr = std::find(closed.begin(), closed.end(), 2) == closed.end();
    const Result result = Process{.closed = closed}.run(args);
    if (has_stdout) expect_goldens(result, rows);
    else EXPECT_EQ(result.status, 1) << result.err;
    if (!has_stdout && has_stderr) {
      EXPECT_EQ(result.num_error_lines(), 1) << result.err;
      EXPECT_NE(result.err.find("stdout"), std::string::npos) << result.err;
    }
  }
  std::filesystem::remove(prompts);
}

struct Kill {
  friend void PrintTo(const Kill& k, std::ostream* out) { *out << k.name; }
  std::string name;
  int signal;
  int victim;  // 0: rank 0, the program itself
};

class Killed : public ::testing::TestWithParam<Kill> {};

// The moments are during the start, the loading and the run.
TEST_P(Killed, AllProcessesEndSoon) {
  const Kill& k = GetParam();
  const LongRun endless;
  for (const int milliseconds : {0, 5, 10, 20, 40, 80, 400}) {
    std::vector<pid_t> workers;
    Process process;
    process.when_started = [&](pid_t pid) {
      workers = wait_for_children(pid, 2);
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      ASSERT_EQ(workers.size(), 2u);
      ::kill(k.victim == 0 ? pid : workers[static_cast<size_t>(k.victim - 1)], k.signal);
    };
    const auto start = std::chrono::steady_clock::now();
    const Result result = endless.run(process);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    if (k.victim == 0) {
      EXPECT_EQ(result.status, k.signal == SIGTERM ? 143 : 1000 + k.signal) << result.err;
    } else {
      EXPECT_EQ(result.status, 1) << result.err;
      EXPECT_EQ(result.num_error_lines(), 1) << result.err;
      EXPECT_NE(result.err.find("rank"), std::string::npos) << result.err;
    }
    expect_gone(workers);
  }
  const std::vector<Json> rows = llama_goldens();
  expect_goldens(run(arguments(2), prompts_of(rows)), rows);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Killed,
                         ::testing::Values(Kill{"rank0", SIGKILL, 0}, Kill{"rank1", SIGKILL, 1},
                                           Kill{"rank2", SIGKILL, 2},
                                           Kill{"rank0_asked", SIGTERM, 0},
                                           Kill{"rank2_asked", SIGTERM, 2}),
                         [](const auto& info) { return info.param.name; });

TEST(Ranks, RankThatHangsEndsTheRun) {
  std::vector<pid_t> workers;
  const LongRun endless;
  Process process;
  process.when_started = [&](pid_t pid) {
    workers = wait_for_children(pid, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    if (workers.size() == 2) ::kill(workers[1], SIGSTOP);
  };
  const Result result = endless.run(process, {"--step-timeout", "2"});
  EXPECT_EQ(result.status, 1) << result.err;
  EXPECT_NE(result.err.find("--step-timeout"), std::string::npos) << result.err;
  expect_gone(workers);
}

TEST(Ranks, CtrlCReachesOnlyRank0) {
  std::vector<pid_t> workers;
  const LongRun endless;
  Process process;
  process.when_started = [&](pid_t pid) {
    workers = wait_for_children(pid, 2);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ::kill(pid, SIGINT);
  };
  const Result result = endless.run(process);
  EXPECT_EQ(result.status, 130) << result.err;
  expect_gone(workers);
}

}  // namespace
}  // namespace nanovllm::testing
