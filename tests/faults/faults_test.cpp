// Makes each system call that can fail, fail once, one in each run. The program must then end by
// itself, with one line that says why, and its output must consist of complete lines.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <span>

#include "fault_report.h"
#include "tests/children.h"

extern char** environ;

namespace nanovllm::testing {
namespace {

const std::string kSource = NANOVLLM_SOURCE_DIR;
// A run takes 30 ms. A run that hangs is killed and reported.
constexpr int kPatienceMilliseconds = 30'000;
// At most this number of a command's allocations, and of its reads, are made to fail;
// NANOVLLM_FAULTS replaces it.
constexpr size_t kMostRuns = 350;
constexpr int kRunsAtOnce = 2;

struct Command {
  const char* name;
  std::vector<std::string> args;
  std::string input = {};
  bool in_worker = false;  // whether the calls of workers fail
  bool streams = false;    // whether it prints pieces of lines

  friend void PrintTo(const Command& command, std::ostream* out) { *out << command.name; }
};

struct Outcome {
  int status = -1;  // exit status, or 1000 + the signal that ended it
  bool hung = false;
  std::string out, err;
  bool was_fault = false;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The files of one run at a time: its streams, and the report, which is mapped here too.
class Bench {
 public:
  explicit Bench(const Command& command) : command_(command) {
    folder_ = ::testing::TempDir() + "faults_XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << folder_;
    std::ofstream(folder_ + "/in") << command.input;
    std::ofstream(folder_ + "/report");
    std::filesystem::resize_file(folder_ + "/report", sizeof(Report));
    const int fd = ::open((folder_ + "/report").c_str(), O_RDWR);
    void* const p = ::mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    report_ = static_cast<Report*>(p);
  }
  ~Bench() {
    ::munmap(report_, sizeof(Report));
    std::filesystem::remove_all(folder_);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  const Report& report() const { return *report_; }

  Outcome run(const std::vector<std::string>& settings) {
    std::filesystem::resize_file(folder_ + "/report", 0);
    std::filesystem::resize_file(folder_ + "/report", sizeof(Report));
    std::vector<std::string> args = command_.args, variables = settings;
    args.insert(args.begin(), NANOVLLM_BINARY);
    variables.insert(variables.end(),
                     {"LD_PRELOAD=" FAULT_SHIM, "FAULT_REPORT=" + folder_ + "/report",
                      command_.in_worker ? "FAULT_IN=worker" : "FAULT_IN=",
                      std::string("PATH=") + std::getenv("PATH")});
    const auto pointers = [](std::vector<std::string>& texts) {
      std::vector<char*> list;
      for (std::string& text : texts) list.push_back(text.data());
      list.push_back(nullptr);
      return list;
    };
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const int to = O_WRONLY | O_CREAT | O_TRUNC;
    posix_spawn_file_actions_addopen(&files, 0, (folder_ + "/in").c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, (folder_ + "/out").c_str(), to, 0600);
    posix_spawn_file_actions_addopen(&files, 2, (folder_ + "/err").c_str(), to, 0600);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);  // workers are in the same session
    pid_t pid = -1;
    const int error = ::posix_spawn(&pid, NANOVLLM_BINARY, &files, &attributes,
                                    pointers(args).data(), pointers(variables).data());
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    Outcome outcome;
    if (error != 0) return outcome;
    const int process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    pollfd end = {process, POLLIN, 0};
    outcome.hung = ::poll(&end, 1, kPatienceMilliseconds) <= 0;
    ::close(process);
    if (outcome.hung) ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    outcome.out = text_of(folder_ + "/out");
    outcome.err = text_of(folder_ + "/err");
    outcome.was_fault = report_->num_faults > 0;
    session_ = pid;
    return outcome;
  }
  /// Processes that the last run left behind.
  std::vector<pid_t> strays() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const auto stat = process_stat(static_cast<pid_t>(std::stol(name)));
      if (stat.size() > 3 && stat[3] == std::to_string(session_) && stat[0] != "Z" &&
          stat[0] != "X")
        found.push_back(static_cast<pid_t>(std::stol(name)));
    }
    return found;
  }

 private:
  const Command& command_;
  std::string folder_;
  Report* report_ = nullptr;
  pid_t session_ = -1;
};

/// Whether `out` is the beginning of the whole output. One result may instead be the error of a
/// request for which no memory was left: that request ends, and the others go on.
bool is_part_of(const std::string& whole, const std::string& out) {
  std::istringstream expected(whole), found(out);
  int num_errors = 0;
  for (std::string want, line; std::getline(found, line);) {
    if (!std::getline(expected, want)) return false;
    if (line == want || (found.eof() && want.starts_with(line))) continue;
    if (line.find("there is not enough memory for the request") == std::string::npos) return false;
    ++num_errors;
  }
  return num_errors <= 1;
}

/// Checks a run in which a call failed. Returns what is wrong, or an empty text.
std::string what_is_wrong(const Command& command, Outcome run, const std::string& whole_output,
                          const Bench& bench) {
  // A disk that is full for the trace may be full for the output too.
  if (run.err.starts_with("warning: the trace ends early") && run.status != 0)
    run.err.erase(0, run.err.find('\n') + 1);
  const bool has_workers = std::ranges::find(command.args, "-tp") != command.args.end();
  const auto num_lines = std::ranges::count(run.err, '\n');
  if (run.hung) return "it hangs";
  if (run.status < 0 || run.status > 2) return "status " + std::to_string(run.status);
  if (num_lines > 1 || (!run.err.empty() && !run.err.ends_with('\n'))) return "not one error line";
  if (run.status != 0 && run.err.empty()) return "no error line";
  if (run.status == 0 && run.out != whole_output)
    return "status 0 without the whole output: " + run.out + "instead of: " + whole_output;
  if (!run.err.empty() && !run.err.starts_with("error: ") && !run.err.starts_with("warning: "))
    return "a strange error line";
  const bool is_whole = command.streams || run.out.empty() || run.out.ends_with('\n');
  if (!is_part_of(whole_output, run.out) || !is_whole)
    return "output that is not whole lines: " + run.out;
  if (has_workers && !holds_within(10, [&] { return bench.strays().empty(); }))
    return "a process stays";
  return "";
}

/// Runs the command once for each of these calls; returns how many faults were injected.
size_t inject(const Command& command, const std::string& kind, const std::vector<uint64_t>& numbers,
              const std::string& whole_output, bool stays = false) {
  std::atomic<size_t> next = 0, injected = 0;
  std::mutex mutex;
  const auto work = [&] {
    Bench bench(command);
    for (size_t i = next++; i < numbers.size() && !::testing::Test::HasFatalFailure(); i = next++) {
      std::vector<std::string> settings = {"FAULT_KIND=" + kind,
                                           "FAULT_AT=" + std::to_string(numbers[i])};
      if (stays) settings.emplace_back("FAULT_STAYS=1");
      const Outcome run = bench.run(settings);
      injected += run.was_fault ? 1 : 0;
      const std::string wrong = what_is_wrong(command, run, whole_output, bench);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(wrong, "") << command.name << ": " << kind << " call " << numbers[i]
                           << (stays ? " and all after it" : "") << (run.was_fault ? "" : " (none)")
                           << ", status " << run.status << ", stderr: " << run.err;
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < kRunsAtOnce; ++i) threads.emplace_back(work);
  threads.clear();
  return injected;
}

const std::vector<std::string> kTiny = {"--device",
                                        "cpu",
                                        "--threads",
                                        "2",
                                        "--max-model-len",
                                        "64",
                                        "--num-gpu-blocks-override",
                                        "8",
                                        "--max-num-seqs",
                                        "4",
                                        "--max-num-batched-tokens",
                                        "64",
                                        "--seed",
                                        "1",
                                        "--step-timeout",
                                        "10"};

std::vector<Command> commands() {
  const auto with = [](std::vector<std::string> args, const std::vector<std::string>& more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const std::string llama = kSource + "/tests/variants/llama";
  const std::string tales = kSource + "/models/tiny-tales";
  const std::vector<std::string> generate = {"generate", llama,           "--prompts-file",
                                             "-",        "--json",        "--max-tokens",
                                             "3",        "--temperature", "0.5"};
  const std::string prompts =
      "{\"prompt_token_ids\": [1, 2, 3]}\n"
      "{\"prompt_token_ids\": [5, 6], \"sampling_params\": {\"n\": 2, \"logprobs\": 1}}\n";
  // When the second prompt starts is a matter of time, and with AMX the bits of bfloat16 depend on
  // what else is in a step.
  const std::vector<std::string> two_prompts = with(with(generate, kTiny), {"--dtype", "float32"});
  const std::vector<std::string> two_ranks = with(two_prompts, {"-tp", "2"});
  // A prompt of so many rows that several threads compute the GEMMs, with AMX if there is any.
  std::vector<std::string> longer = kTiny;
  for (std::string& value : longer)
    if (value == "64") value = "512";
  std::string long_prompt = "{\"prompt_token_ids\": [7";
  for (int i = 0; i < 300; ++i) long_prompt += ", " + std::to_string(i);
  long_prompt += "]}\n";
  return {
      {.name = "Generate", .args = two_prompts, .input = prompts},
      {.name = "Trace", .args = with(two_prompts, {"--trace", "/dev/null"}), .input = prompts},
      {.name = "LongPrompt", .args = with(generate, longer), .input = long_prompt},
      {.name = "Rank0", .args = two_ranks, .input = prompts},
      {.name = "Rank1", .args = two_ranks, .input = prompts, .in_worker = true},
      {.name = "Chat",
       .args = with({"chat", tales, "--max-tokens", "3", "--temperature", "0"}, kTiny),
       .input = "Hello\n",
       .streams = true},
      {.name = "Tokenize", .args = {"tokenize", tales}, .input = "Once upon a time\nthe end\n"},
      {.name = "Render",
       .args = {"render", tales, "--json"},
       .input = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n"},
  };
}

class Faults : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers have allocation functions of their own";
#endif
  }
};

class FaultsOf : public Faults, public ::testing::WithParamInterface<Command> {};

TEST_P(FaultsOf, EndInOneLineAndStatus) {
  const Command& command = GetParam();
  Bench bench(command);
  const Outcome good = bench.run({"FAULT_PATHS=1"});
  ASSERT_EQ(good.status, 0) << good.err;
  ASSERT_EQ(good.err, "");
  ASSERT_NE(good.out, "");
  const auto& all_paths = bench.report().paths;
  const std::span paths(all_paths.data(), std::min<size_t>(bench.report().num_paths, kMaxPaths));
  size_t injected = 0;
  std::string counts;
  for (size_t i = 0; i < kFaultNames.size(); ++i) {
    const auto kind = static_cast<Fault>(i);
    const std::string name = kFaultNames[i];
    const uint64_t num_calls = bench.report().calls[i];
    std::vector<uint64_t> numbers;
    if (is_by_path(kind)) {
      for (const CallPath& path : paths)
        if (path.kind == kind) numbers.push_back(path.number);
      std::ranges::sort(numbers);
      // If there are too many, takes some at equal distances.
      const char* const asked = std::getenv("NANOVLLM_FAULTS");
      const size_t most = asked == nullptr ? kMostRuns : std::strtoull(asked, nullptr, 10);
      if (numbers.size() > most) {
        std::vector<uint64_t> some;
        for (size_t i = 0; i < most; ++i) some.push_back(numbers[i * numbers.size() / most]);
        numbers = some;
      }
    } else {
      for (uint64_t n = 1; n <= num_calls; ++n) numbers.push_back(n);
    }
    injected += inject(command, name, numbers, good.out);
    // All later calls fail too, as if a limit was reached.
    if (kind != Fault::kMemory)
      injected += inject(command, name, numbers, good.out, /*stays=*/true);
    counts += fmt::format(" {} {} of {};", name, numbers.size(), num_calls);
  }
  std::cout << fmt::format("{}: {} faults;{}\n", command.name, injected, counts);
  EXPECT_GT(injected, 20u);
}

// The initializers of shared libraries take most of the time before main().
TEST_F(Faults, SignalsBeforeMainEndTheProgramAsLaterOnes) {
  const Command version = {.name = "Version", .args = {"--version"}};
  Bench bench(version);
  for (const auto& [number, status] :
       {std::pair(SIGINT, 130), {SIGTERM, 143}, {SIGPIPE, 0}, {SIGXFSZ, 0}}) {
    const Outcome run = bench.run({"FAULT_SIGNAL=" + std::to_string(number)});
    EXPECT_EQ(run.status, status);
    EXPECT_EQ(run.err, "");
  }
}

// The last call is that which waits for the disk (docs/batch.md).
TEST_F(Faults, AllResultsAreSyncedAtTheEnd) {
  const std::string file = ::testing::TempDir() + "faults_output_" + std::to_string(::getpid());
  Command generate = {.name = "Output",
                      .args = {"generate", kSource + "/tests/variants/llama", "--prompts-file", "-",
                               "--max-tokens", "3", "--output", file},
                      .input = "{\"prompt_token_ids\": [1, 2]}\n{\"prompt_token_ids\": [3]}\n"};
  generate.args.insert(generate.args.end(), kTiny.begin(), kTiny.end());
  Bench bench(generate);
  const Outcome good = bench.run({});
  ASSERT_EQ(good.status, 0) << good.err;
  const std::string results = text_of(file);
  EXPECT_EQ(std::ranges::count(results, '\n'), 2);
  const uint64_t num_writes = bench.report().calls[static_cast<size_t>(Fault::kWrite)];
  std::filesystem::remove(file);
  const Outcome failed = bench.run({"FAULT_KIND=write", "FAULT_AT=" + std::to_string(num_writes)});
  EXPECT_EQ(failed.status, 1);
  EXPECT_EQ(failed.err, "error: cannot write to " + file + ": Input/output error\n");
  EXPECT_EQ(std::ranges::count(text_of(file), '\n'), 2);
  std::filesystem::remove(file);
}

INSTANTIATE_TEST_SUITE_P(Commands, FaultsOf, ::testing::ValuesIn(commands()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nanovllm::testing
