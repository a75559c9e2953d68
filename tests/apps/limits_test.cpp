// The binary where the limits of its process or container are low: it fits in them, or ends with
// one line that says which limit it is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "binary.h"
#include "tests/children.h"

namespace nanovllm::testing {
namespace {

namespace fs = std::filesystem;

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::vector<std::string> kGenerate = {"generate", kTinyTales,        "--prompt",  "Once upon",
                                            "--json",   "--max-tokens",    "4",         "--device",
                                            "cpu",      "--temperature=0", "--threads", "2"};

bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

/// Either the answer, or one line and a status of the program's own.
void expect_answer_or_line(const Result& r, const std::string& expected) {
  if (r.status == 0) {
    EXPECT_EQ(r.out, expected);
    return;
  }
  EXPECT_THAT(r.status, AnyOf(1, 2)) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.num_error_lines(), 1) << r.err;
  EXPECT_THAT(r.err, StartsWith("error: "));
}

TEST(Limits, AnyLimitOfMemoryIsEnoughOrNamed) {
  if (is_sanitized()) GTEST_SKIP() << "a sanitizer's own memory does not fit";
  const std::string expected = run(kGenerate).out;
  ASSERT_NE(expected, "");
  for (const char* limit : {"v", "d"})
    for (int kib = 30'000; kib <= 2'000'000; kib += kib < 500'000 ? 27'000 : 250'000) {
      SCOPED_TRACE(std::string(limit) + " " + std::to_string(kib));
      const std::string line =
          std::string("ulimit -") + limit + " " + std::to_string(kib) + "; exec \"$@\"";
      const Result r = run_in_shell(line, kGenerate);
      if (r.status == 127) continue;  // the dynamic linker finds no memory for the libraries
      expect_answer_or_line(r, expected);
      if (kib >= 400'000) {
        EXPECT_EQ(r.status, 0) << r.err;
      }
    }
}

/// The kernel leaves a random part of the stack unused, up to 8 KiB. Of 16 KiB the dynamic loader
/// itself sometimes has too little, before the program begins; that is not what is tested.
Result run_with_little_stack(const std::string& line, const std::vector<std::string>& args,
                             int expected_status) {
  Result result = run_in_shell(line, args);
  for (int attempt = 1; attempt < 8 && result.status != expected_status; ++attempt)
    result = run_in_shell(line, args);
  return result;
}

TEST(Limits, AnyLimitOfStacksIsEnough) {
  if (is_sanitized()) GTEST_SKIP() << "a sanitizer needs more before main()";
  const std::string expected = run(kGenerate).out;
  ASSERT_NE(expected, "");
  for (const char* kib : {"16", "32", "64", "128", "512", "1000", "8192", "100000", "unlimited"}) {
    SCOPED_TRACE(kib);
    const std::string line = std::string("ulimit -s ") + kib + "; exec \"$@\"";
    std::vector<std::string> args = kGenerate;
    EXPECT_EQ(run_with_little_stack(line, args, 0).out, expected);
    args.insert(args.end(), {"-tp", "2"});  // the process of the other rank, too
    EXPECT_EQ(run_with_little_stack(line, args, 0).status, 0);
    const std::vector<std::string> wrong = {"generate", kTinyTales, "--max-tokens", "0"};
    EXPECT_EQ(run_with_little_stack(line, wrong, 2).status, 2);
    EXPECT_EQ(run_with_little_stack(line, {"--version"}, 0).status, 0);
  }
}

// The main thread only waits then, and signals must reach the other one.
TEST(Limits, SignalsEndTheProgramOnAnotherStack) {
  if (is_sanitized()) GTEST_SKIP() << "a sanitizer needs more before main()";
  for (const int number : {SIGINT, SIGTERM}) {
    const Process process{.program = "/bin/sh", .signal_when = [&](const std::string& out) {
                            return out.empty() ? 0 : number;
                          }};
    const Result r =
        process.run({"-c", "ulimit -s 64; exec \"$@\"", "sh", NANOVLLM_BINARY, "generate",
                     kTinyTales, "--prompt", "Once", "--prompt", "The", "--ignore-eos",
                     "--max-tokens", "2000", "--unordered", "--max-num-seqs", "1"});
    EXPECT_EQ(r.status, 128 + number) << r.err;
  }
}

/// A control group with a limit, below the one of this process.
class Group {
 public:
  /// `controller` is memory or cpu.
  explicit Group(const std::string& controller) {
    std::ifstream file("/proc/self/cgroup");
    for (std::string line; std::getline(file, line);)
      if (const size_t at = line.find(":" + controller + ":"); at != line.npos)
        folder_ = "/sys/fs/cgroup/" + controller + line.substr(at + controller.size() + 2) +
                  "/nanovllm-test-" + std::to_string(::getpid());
    std::error_code error;
    if (!folder_.empty()) fs::create_directory(folder_, error);
    is_there_ = fs::exists(folder_ / "cgroup.procs");
  }
  ~Group() {
    if (is_there_)
      holds_within(10, [&] {
        std::error_code error;
        for (const fs::path& folder : {folder_ / "inner", folder_}) fs::remove(folder, error);
        return !fs::exists(folder_);
      });
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  bool set(const std::string& file, const std::string& value) const {
    std::ofstream to(folder_ / file);
    to << value;
    to.flush();
    return to.good();
  }
  bool is_there() const { return is_there_; }
  /// Shell commands that move the shell into the group, or into one below it.
  std::string enter() const { return "echo $$ > " + folder_.string() + "/cgroup.procs; "; }
  std::string enter_inner() const {
    return "mkdir -p " + folder_.string() + "/inner; echo $$ > " + folder_.string() +
           "/inner/cgroup.procs; ";
  }

 private:
  fs::path folder_;
  bool is_there_ = false;
};

constexpr const char* kNoGroups =
    "no group of version 1 can be made here; base: Cgroup has made ones";

TEST(Limits, ContainersOfVersion1AreSeen) {
  const Group memory("memory"), cpu("cpu");
  if (!memory.is_there() || !cpu.is_there() || !memory.set("memory.limit_in_bytes", "734003200") ||
      !cpu.set("cpu.cfs_quota_us", "100000"))
    GTEST_SKIP() << kNoGroups;
  for (const std::string& enter :
       {memory.enter() + cpu.enter(), memory.enter_inner() + cpu.enter_inner()}) {
    const Result r =
        run_in_shell(enter + "exec \"$@\"", {"info", kTinyTales, "--device", "cpu", "--json"});
    ASSERT_EQ(r.status, 0) << r.err;
    const Json json = lines(r.out).at(0);
    EXPECT_EQ(json["memory_total_bytes"], 734003200);
    EXPECT_LE(json["memory_free_bytes"], 734003200);
    EXPECT_THAT(json["kernels"].get<std::string>(), HasSubstr(", 1 thread"));
    EXPECT_LE(json["kv_cache_bytes"], 734003200 / 2);
  }
}

// Many long answers at the same time fill the cache. With one that is made for the machine, the
// kernel would kill the process.
TEST(Limits, ProcessesInASmallContainerAreNotKilled) {
  if (is_sanitized()) GTEST_SKIP() << "a sanitizer's own memory does not fit";
  const Group memory("memory");
  if (!memory.is_there() || !memory.set("memory.limit_in_bytes", "314572800"))
    GTEST_SKIP() << kNoGroups;
  std::vector<std::string> args = {"generate", kTinyTales,     "--n", "64",       "--ignore-eos",
                                   "--json",   "--max-tokens", "300", "--device", "cpu"};
  for (const char* prompt : {"Once", "The", "A", "When"})
    args.insert(args.end(), {"--prompt", prompt});
  const Result r = run_in_shell(memory.enter() + "exec \"$@\"", args);
  EXPECT_EQ(r.status, 0) << r.err;
  const std::vector<Json> results = lines(r.out);
  ASSERT_EQ(results.size(), 4U);
  for (const Json& result : results) EXPECT_EQ(result["outputs"].size(), 64U);
}

}  // namespace
}  // namespace nanovllm::testing
