// `generate --output`, and what a terminal shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/file.h>

#include <algorithm>

#include "batch.h"
#include "tests/children.h"

namespace nanovllm::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// `count` prompts of which every third has a longer answer.
std::string prompts(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += R"({"id": )" + std::to_string(i) + R"(, "prompt": "The king number )" +
            std::to_string(i) + R"(", "temperature": 0, "ignore_eos": true, "max_tokens": )" +
            (i % 3 == 0 ? "40" : "4") + "}\n";
  return text;
}

TEST(Output, IsInTheOrderOfThePromptsOrOfCompletion) {
  const TempFile in(prompts(6)), ordered, unordered;
  const Result a =
      run(generate({"--prompts-file", in.path(), "--output", ordered.path(), "--json"}));
  EXPECT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(a.out + a.err, "");
  EXPECT_EQ(indices(lines(ordered.read())), (std::vector{0, 1, 2, 3, 4, 5}));
  const Result b =
      run(generate({"--prompts-file", in.path(), "--output", unordered.path(), "--unordered"}));
  EXPECT_EQ(b.status, 0) << b.err;
  std::vector<Json> found = lines(unordered.read());
  EXPECT_EQ(found.at(5)["index"], 3);
  std::ranges::sort(found, {}, [](const Json& result) { return result["index"].get<int>(); });
  EXPECT_EQ(found, lines(ordered.read()));
}

// Runs that are killed after some results, until one is not, write what one run writes.
TEST(Output, IsContinuedAfterKillsAndInterrupts) {
  const int count = 60;
  const TempFile in(prompts(count)), whole, resumed;
  ASSERT_EQ(run(generate({"--prompts-file", in.path(), "--output", whole.path()})).status, 0);
  for (const auto& [signal, order] :
       {std::pair(SIGKILL, "--unordered"), std::pair(SIGINT, "--unordered"),
        std::pair(SIGKILL, "--quiet"), std::pair(SIGINT, "--quiet")}) {
    const TempFile out;
    out.write("");
    size_t before = 0;
    for (int i = 0;; ++i) {
      ASSERT_LT(i, count);
      const Process process{.when_started = [&](pid_t pid) {
        // Until it has written about ten results, or has ended.
        const size_t size = out.read().size() + 5000;
        for (int ms = 0; ms < 60'000 && out.read().size() <= size; ++ms) {
          siginfo_t info{};
          ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT);
          if (info.si_pid != 0) return;
          ::usleep(1000);
        }
        ::kill(pid, signal);
      }};
      const Result r = process.run(generate(
          {"--prompts-file", in.path(), "--output", out.path(), "--max-num-seqs", "4", order}));
      std::string text = out.read();
      if (r.status == 0) break;
      EXPECT_EQ(r.status, signal == SIGKILL ? 1000 + SIGKILL : 130) << r.err;
      const bool is_last = lines(text).size() == static_cast<size_t>(count);
      if (signal == SIGINT && order == std::string("--unordered") && !is_last) {
        EXPECT_THAT(r.err, HasSubstr("the same command continues from there"));
      }
      EXPECT_GE(lines(text).size(), before);
      before = lines(text).size();
      out.write(text + R"({"index":3,"prompt_tok)");  // as if it had been killed in a write
    }
    std::vector<Json> found = lines(out.read());
    std::ranges::sort(found, {}, [](const Json& result) { return result["index"].get<int>(); });
    EXPECT_EQ(found, lines(whole.read()));
  }
}

// The second of ten answers is long, so those after it wait for their turn when the run ends early.
TEST(Output, KeepsWhatIsFinishedWhenTheRunOrTheEngineEndsEarly) {
  std::string text;
  for (int i = 0; i < 10; ++i)
    text += R"({"prompt": "Once", "ignore_eos": true, "max_tokens": )" +
            std::string(i == 1 ? "2000" : "3") + "}\n";
  const TempFile in(text);
  for (const bool kills_worker : {false, true}) {
    const TempFile out;
    const Process process{.when_started = [&](pid_t pid) {
      const pid_t worker = kills_worker ? wait_for_children(pid, 1).at(0) : 0;
      EXPECT_TRUE(holds_within(60, [&] { return !out.read().empty(); }));
      if (kills_worker) ::kill(worker, SIGKILL);
      else ::kill(pid, SIGINT);
    }};
    std::vector<std::string> args = generate({"--prompts-file", in.path(), "--output", out.path()});
    if (kills_worker) args.insert(args.end(), {"--device", "cpu", "-tp", "2"});
    const Result r = process.run(args);
    EXPECT_EQ(r.status, kills_worker ? 1 : 130);
    EXPECT_EQ(r.num_error_lines(), 1) << r.err;
    EXPECT_EQ(indices(lines(out.read())), (std::vector{0, 2, 3, 4, 5, 6, 7, 8, 9}));
  }
}

TEST(Output, FullDiskIsOneErrorAndTheFileStaysValid) {
  const TempFile in(prompts(30)), out;
  const std::vector<std::string> args =
      generate({"--prompts-file", in.path(), "--output", out.path()});
  const Result full = run_in_shell("ulimit -f 8; exec \"$@\"", args);
  EXPECT_EQ(full.status, 1);
  EXPECT_EQ(full.num_error_lines(), 1) << full.err;
  EXPECT_THAT(full.err, HasSubstr("cannot write to " + out.path()));
  const size_t written = lines(out.read()).size();
  EXPECT_GT(written, 0u);
  EXPECT_LT(written, 30u);
  const Result again = run(args);
  EXPECT_EQ(again.status, 0);
  EXPECT_EQ(again.err, out.path() + " has " + std::to_string(written) +
                           " results already, which are skipped\n");
  EXPECT_EQ(lines(out.read()).size(), 30u);
}

TEST(Output, RefusedLineIsAnsweredOnceItIsMended) {
  const std::string good = "{\"id\": 0, \"prompt\": \"Once\", \"max_tokens\": 2}\n";
  const TempFile in(good + "{\"id\": 1}\n"), out;
  const std::vector<std::string> args =
      generate({"--prompts-file", in.path(), "--output", out.path(), "--quiet"});
  for (int i = 0; i < 2; ++i) {  // the status does not depend on how many runs it took
    const Result r = run(args);
    EXPECT_EQ(r.status, 2);
    EXPECT_EQ(r.err, "error: 1 of 2 prompts refused\n");
    EXPECT_EQ(lines(out.read()).size(), 2u);
  }
  // The refused line is no result that is skipped.
  EXPECT_THAT(run(generate({"--prompts-file", in.path(), "--output", out.path()})).err,
              StartsWith(out.path() + " has 1 results already, which are skipped\n"));
  in.write(good + "{\"id\": 1, \"prompt\": \"The\", \"max_tokens\": 2}\n");
  for (int i = 0; i < 2; ++i) {
    const Result r = run(args);
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(indices(lines(out.read())), (std::vector{0, 1, 1}));
  }
}

TEST(Output, FileOfOtherPromptsOrAnythingElseIsRefusedAndUnchanged) {
  const TempFile in(prompts(3)), out;
  const auto expect_refused = [&](const std::string& text, const std::string& what) {
    in.write(text);
    const std::string before = out.read();
    const Result r =
        run(generate({"--prompts-file", in.path(), "--output", out.path(), "--quiet"}));
    EXPECT_EQ(r.status, 2);
    EXPECT_EQ(r.num_error_lines(), 1) << r.err;
    EXPECT_THAT(r.err, HasSubstr(out.path() + ": " + what));
    EXPECT_EQ(out.read(), before);
  };
  ASSERT_EQ(run(generate({"--prompts-file", in.path(), "--output", out.path()})).status, 0);
  expect_refused("{\"id\": 0, \"prompt\": \"Another\"}\n",
                 "the result with index 0 is that of another prompt");
  expect_refused("{\"id\": 5, \"prompt\": \"The king number 0\"}\n", "the result with index 0");
  for (const char* text :
       {"notes\n", "notes", "{\"prompt\": \"a\"}\n", "{\"index\": 5}\n", "5\n"}) {
    out.write(text);
    expect_refused(prompts(1), "line 1 is not a result of 'nanovllm generate'");
  }
  out.write("");
  const int other = ::open(out.path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  expect_refused(prompts(1), "another process is writing");
  ::close(other);
}

/// A file of eight results whose tail is as a power failure leaves it.
class PowerFailure : public ::testing::Test {
 protected:
  static constexpr int kCount = 8;
  void SetUp() override {
    ASSERT_EQ(run(args_).status, 0);
    whole_ = out_.read();
    ASSERT_EQ(lines(whole_).size(), static_cast<size_t>(kCount));
  }
  size_t line(int number) const {  // where it begins
    size_t at = 0;
    for (int i = 0; i < number; ++i) at = whole_.find('\n', at) + 1;
    return at;
  }
  /// Continues with this contents of the file, of which `num_kept` results are intact.
  void expect_continued(const std::string& text, int num_kept) {
    out_.write(text);
    const Result r = run(args_);
    EXPECT_EQ(r.status, 0) << r.err;
    const std::string lost = std::to_string(text.size() - line(num_kept));
    EXPECT_THAT(r.err, StartsWith(out_.path() +
                                  " ended with zero bytes, as after a power failure; "
                                  "the last " +
                                  lost + " bytes were removed\n"));
    if (num_kept > 0) {
      EXPECT_THAT(r.err, HasSubstr(" has " + std::to_string(num_kept) + " results already"));
    }
    EXPECT_EQ(out_.read(), whole_);
  }
  void expect_refused_and_unchanged(const std::string& text, const std::string& what) {
    out_.write(text);
    const Result r = run(args_);
    EXPECT_EQ(r.status, 2);
    EXPECT_THAT(r.err, HasSubstr(out_.path() + ": " + what));
    EXPECT_EQ(r.num_error_lines(), 1) << r.err;
    EXPECT_TRUE(out_.read() == text) << text.substr(0, 100);
  }
  static std::string zeros(size_t count) { return std::string(count, '\0'); }

  TempFile in_ = TempFile(prompts(kCount)), out_;
  std::vector<std::string> args_ =
      generate({"--prompts-file", in_.path(), "--output", out_.path()});
  std::string whole_;
};

TEST_F(PowerFailure, ZerosAtTheEnd) {
  expect_continued(whole_.substr(0, line(3)) + zeros(4096), 3);
  expect_continued(whole_.substr(0, line(3)) + zeros(1), 3);
  expect_continued(whole_.substr(0, line(3) + 3) + zeros(500), 3);  // in the name of the first key
  expect_continued(whole_.substr(0, line(3) + 40) + zeros(500), 3);
  expect_continued(whole_.substr(0, line(4) - 1) + zeros(100), 3);  // the newline is lost
  expect_continued(whole_ + zeros(100), kCount);
  expect_continued(zeros(4096), 0);
  expect_continued(zeros(3) + "\n" + zeros(3), 0);
  // More than the memory for a line.
  std::string text = whole_.substr(0, line(5) + 9);
  text.resize(size_t{300} << 20);
  expect_continued(text, 5);
}

TEST_F(PowerFailure, HolesOfASparseFileTakeNoTime) {
  out_.write(whole_.substr(0, line(2)));
  std::filesystem::resize_file(out_.path(), uintmax_t{1} << 40);
  EXPECT_EQ(run(args_).status, 0);
  EXPECT_EQ(out_.read(), whole_);
  out_.write("");
  std::filesystem::resize_file(out_.path(), uintmax_t{1} << 40);
  EXPECT_EQ(run(args_).status, 0);
  EXPECT_EQ(out_.read(), whole_);
}

// What was written later may have reached the disk earlier.
TEST_F(PowerFailure, ZerosBeforeTheEnd) {
  const auto without = [&](size_t begin, size_t end) {
    return whole_.substr(0, begin) + zeros(end - begin) + whole_.substr(end);
  };
  expect_continued(without(line(3), line(5)), 3);
  expect_continued(without(line(3) + 20, line(5) + 20), 3);
  expect_continued(without(line(3) - 1, line(3)), 2);  // a newline
  expect_continued(without(line(7) + 1, line(7) + 2), 7);
  expect_continued(without(0, line(1) + 5), 0);
  expect_continued(without(0, 1), 0);
  expect_continued(without(line(2), line(4)) + zeros(100), 2);
}

// A file of another kind may have zeros, too.
TEST_F(PowerFailure, OtherFilesStayAsTheyAre) {
  const std::string refused = "line 1 is not a result of 'nanovllm generate'";
  expect_refused_and_unchanged(zeros(3) +
                                   "\x18"
                                   "ftypisom" +
                                   zeros(4),
                               refused);
  expect_refused_and_unchanged(zeros(8) + "text", refused);
  expect_refused_and_unchanged("notes" + zeros(8), refused);
  expect_refused_and_unchanged("{" + zeros(1) + "\"" + zeros(1) + "a" + zeros(1), refused);
  expect_refused_and_unchanged("\x40" + zeros(7) + "{\"index\":", refused);
  expect_refused_and_unchanged(whole_.substr(0, line(3)) + zeros(8) + "\x01",
                               "line 4 is not a result");
  // Too much for a power failure: the results after the zeros are worth more than an error.
  const std::string damaged = whole_.substr(0, line(1)) + zeros(8) + "\n";
  std::string text = damaged;
  while (text.size() < (size_t{66} << 20)) text += whole_;
  expect_refused_and_unchanged(text, "line 2 has zero bytes, and 65 MiB of text follow");
}

/// Runs the binary on a pseudo-terminal of 80 columns and returns what it showed.
Result on_terminal(std::vector<std::string> args) {
  args.insert(args.begin(), NANOVLLM_BINARY);
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  int fd = -1;
  const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  const pid_t pid = ::forkpty(&fd, nullptr, nullptr, &size);
  if (pid == 0) {
    ::setenv("TERM", "xterm", 1);
    ::execv(NANOVLLM_BINARY, argv.data());
    ::_exit(127);
  }
  Result result;
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = ::read(fd, buffer.data(), buffer.size())) > 0;)
    for (ssize_t i = 0; i < n; ++i)
      if (buffer[i] != '\r') result.out += buffer[i];
  ::close(fd);
  int status = 0;
  ::waitpid(pid, &status, 0);
  result.status = WEXITSTATUS(status);
  return result;
}

TEST(OnATerminal, SinglePromptIsStreamedAsPlainText) {
  std::vector<std::string> args = generate(
      {"--prompt", "The sky was", "--temperature", "0", "--max-tokens", "20", "--ignore-eos"});
  const auto with = [&](const std::string& option) {
    std::vector<std::string> all = args;
    all.push_back(option);
    return all;
  };
  const std::string text = lines(run(with("--json")).out).at(0)["text"].string();
  const Result r = on_terminal(args);
  EXPECT_EQ(r.status, 0);
  EXPECT_THAT(r.out, StartsWith(text + "\n20 tokens, "));
  EXPECT_THAT(r.out, HasSubstr(" tokens/s, first token after "));
  EXPECT_EQ(on_terminal(with("--quiet")).out, text + "\n");
  EXPECT_THAT(run(args).out, HasSubstr("\nPrompt: 'The sky was'\nCompletion: "));
  args.insert(args.end(), {"--n", "2", "--quiet"});
  EXPECT_THAT(on_terminal(args).out, StartsWith("\nPrompt: 'The sky was'\nCompletion: "));
}

TEST(OnATerminal, BarHasTheNumberOfPrompts) {
  const TempFile in("\n" + prompts(3) + "\n  \n"), out;
  std::vector<std::string> args = generate({"--prompts-file", in.path(), "--output", out.path()});
  EXPECT_THAT(on_terminal(args).out, HasSubstr(" 3/3 ["));
  args.emplace_back("--quiet");
  EXPECT_EQ(on_terminal(args).out, "");
}

}  // namespace
}  // namespace nanovllm::testing
