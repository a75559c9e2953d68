// Files of prompts, and `generate --output`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "nanovllm/base/json.h"
#include "process.h"
#include "tests/children.h"

namespace nanovllm::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const std::string kTinyTales = std::string(NANOVLLM_SOURCE_DIR) + "/models/tiny-tales";

std::vector<Json> lines(const std::string& text) {
  std::vector<Json> all;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) all.push_back(Json::parse(line));
  return all;
}

std::vector<int> indices(const std::vector<Json>& results) {
  std::vector<int> all;
  for (const Json& result : results) all.push_back(result["index"]);
  return all;
}

/// Greedy, so that the answers of two runs are equal.
std::vector<std::string> generate(const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      "generate", kTinyTales, "--dtype", "float32", "--kv-cache-memory-bytes", "50000000"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

/// A path in a folder of its own.
class TempFile {
 public:
  explicit TempFile(const std::string& text = "") {
    folder_ = ::testing::TempDir() + "batch_XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) ADD_FAILURE() << folder_;
    if (!text.empty()) write(text);
  }
  ~TempFile() { fs::remove_all(folder_); }
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  std::string path() const { return folder_ + "/lines.jsonl"; }
  void write(const std::string& text) const { std::ofstream(path()) << text; }
  std::string read() const {
    std::ifstream file(path());
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string folder_;
};

std::string error_of(const std::string& line) {
  const Result r = run(generate({"--prompts-file", "-", "--json"}), line + "\n");
  EXPECT_EQ(r.status, 2) << line;
  EXPECT_EQ(r.err, "error: 1 of 1 prompts refused\n");
  return lines(r.out).at(0).value("error", "");
}

TEST(PromptsFile, OtherFieldsArePassedThrough) {
  const Result r = run(generate({"--prompts-file", "-", "--json"}),
                       R"({"id": "a", "prompt": "Once", "max_tokens": 2, "tags": {"x": [1, null]}})"
                       "\n"
                       R"({"custom_id": 7, "promt": "Once"})"
                       "\n"
                       R"({"prompt": "Once", "max_tokens": 1, "index": 9, "error": "e", "text": 1})"
                       "\n");
  EXPECT_EQ(r.status, 2);
  EXPECT_EQ(r.err, "error: 1 of 3 prompts refused\n");
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 3u);
  EXPECT_EQ(out[0]["id"], "a");
  EXPECT_EQ(out[0]["tags"], Json::parse(R"({"x": [1, null]})"));
  EXPECT_EQ(out[0]["token_ids"].size(), 2u);
  EXPECT_FALSE(out[0].contains("max_tokens"));
  EXPECT_EQ(out[1]["custom_id"], 7);
  EXPECT_THAT(out[1]["error"].get<std::string>(), HasSubstr("custom_id, promt"));
  EXPECT_EQ(indices(out), (std::vector{0, 1, 2}));  // the result's own fields have precedence
  EXPECT_FALSE(out[2].contains("error"));
  EXPECT_TRUE(out[2]["text"].is_string());
}

TEST(PromptsFile, ExamplesRun) {
  for (const char* name : {"batch.jsonl", "openai_batch.jsonl"}) {
    const std::string path = std::string(NANOVLLM_SOURCE_DIR) + "/examples/" + name;
    const Result r = run(generate({"--chat", "--prompts-file", path, "--json"}));
    EXPECT_EQ(r.status, 0) << r.out;
    EXPECT_EQ(r.err, "");
  }
}

TEST(PromptsFile, TextIsAUsersMessageWithChat) {
  const Result r =
      run(generate({"--chat", "--prompts-file", "-", "--json", "--max-tokens", "1"}),
          R"({"prompt": "Hi", "enable_thinking": false})"
          "\n"
          R"({"messages": [{"role": "user", "content": "Hi"}], "enable_thinking": false})"
          "\n"
          R"({"body": {"prompt": "Hi"}})"
          "\n");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::vector<Json> out = lines(r.out);
  EXPECT_EQ(out.at(0)["prompt_token_ids"], out.at(1)["prompt_token_ids"]);
  EXPECT_LT(out.at(2)["prompt_token_ids"].size(), 5u);  // as in OpenAI's API for completions
}

TEST(PromptsFile, MisspeltParameterIsPassedThroughWithAWarning) {
  const std::string line = R"({"prompt": "Once", "max_tokens": 1, "temprature": 0, "topic": "t"})"
                           "\n";
  const Result r = run(generate({"--prompts-file", "-", "--json"}), line + line);
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.err,
            "warning: line 1: \"temprature\" is only copied to the result; did you mean "
            "temperature?\n");
  EXPECT_EQ(lines(r.out).at(1)["temprature"], 0);
}

TEST(PromptsFile, SamplingFieldsMayStandAtTheTopLevel) {
  const Result r = run(generate({"--prompts-file", "-", "--json", "--max-tokens", "9"}),
                       R"({"prompt": "Once", "max_tokens": 2, "ignore_eos": true})"
                       "\n"
                       R"({"prompt": "Once", "ignore_eos": true, "sampling_params": {"n": 2}})"
                       "\n");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(lines(r.out).at(0)["token_ids"].size(), 2u);
  EXPECT_EQ(lines(r.out).at(1)["outputs"].size(), 2u);
  EXPECT_EQ(lines(r.out).at(1)["usage"], Json::parse(R"({"prompt_tokens": 1,
            "completion_tokens": 18, "cached_tokens": 0})"));
  EXPECT_EQ(error_of(R"({"prompt": "a", "seed": 1, "sampling_params": {"seed": 2}})"),
            "line 1: seed is given twice");
  EXPECT_THAT(error_of(R"({"prompt": "a", "temperature": "hot"})"),
              HasSubstr("line 1: temperature must be a number"));
  EXPECT_THAT(error_of(R"({"prompt": "a", "guided_regex": "[0-9]"})"),
              HasSubstr("guided_regex \"[0-9]\" is not supported"));
}

TEST(PromptsFile, OpenAisBatchLinesWork) {
  const std::string start =
      R"({"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", )"
      R"("messages": [{"role": "user", "content": "hello"}])";
  const Result r = run(
      generate({"--prompts-file", "-", "--json", "--temperature", "0"}),
      start +
          R"(, "max_completion_tokens": 3, "logprobs": true, "top_logprobs": 2, "stream": true,)" +
          R"("response_format": {"type": "text"}, "user": "u", "stop": null}})" + "\n" +
          R"({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3})" + "\n" +
          R"({"custom_id": "d", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 2}})" +
          "\n" + R"({"body": {"prompt": [5, 6], "max_tokens": 2, "logprobs": 1}})" + "\n");
  ASSERT_EQ(r.status, 0) << r.err << r.out;
  const std::vector<Json> out = lines(r.out);
  ASSERT_EQ(out.size(), 4u);
  EXPECT_EQ(out[0]["custom_id"], "c");
  EXPECT_FALSE(out[0].contains("method"));
  EXPECT_EQ(out[0]["token_ids"], out[1]["token_ids"]);
  EXPECT_EQ(out[0]["token_ids"].size(), 3u);
  EXPECT_EQ(out[0]["logprobs"][0].size(), 3u);
  EXPECT_EQ(out[0]["outputs"][0]["logprobs"], out[0]["logprobs"]);
  EXPECT_EQ(out[2]["token_ids"].size(), 2u);
  EXPECT_EQ(out[3]["prompt_token_ids"], Json({5, 6}));
  EXPECT_EQ(out[3]["logprobs"][0].size(), 2u);

  for (const auto& [more, what] :
       {std::pair(R"("response_format": {"type": "json_schema"})", "line 1: body: response_format"),
        std::pair(R"("tool_choice": "required")", "tool_choice \"required\" is not supported"),
        std::pair(R"("top_logprobs": 2)", "top_logprobs needs logprobs"),
        std::pair(R"("max_tokens": 2, "max_completion_tokens": 3)", "max_tokens is given twice"),
        std::pair(R"("temprature": 2)", "\"temprature\" is not supported"),
        std::pair(R"("prompt": "a")", "exactly one of messages and prompt")})
    EXPECT_THAT(error_of(start + ", " + more + "}}"), HasSubstr(what));
  EXPECT_THAT(error_of(R"({"url": "/v1/embeddings", "body": {"input": "a"}})"),
              HasSubstr("\"input\" is not supported"));
  EXPECT_THAT(error_of(R"({"url": "/v1/completions", "body": {"prompt": ["a", "b"]}})"),
              HasSubstr("one text or one list of token ids"));
  EXPECT_THAT(error_of(R"({"body": 5})"), HasSubstr("line 1: body: must be an object"));
}

TEST(Chat, TakesTheCheckpointsSamplingValuesAndDoesNotCutTheAnswer) {
  const auto answer = [](const std::vector<std::string>& more) {
    std::vector<std::string> args = generate({"--chat", "--prompt", "tell me a story about a fox",
                                              "--sample-seed", "1", "--no-thinking", "--json"});
    args.insert(args.end(), more.begin(), more.end());
    const Result r = run(args);
    EXPECT_EQ(r.status, 0) << r.err;
    return lines(r.out).at(0)["token_ids"];
  };
  const std::vector<std::string> checkpoint = {"--temperature", "0.6", "--top-k", "20",
                                               "--top-p",       "0.95"};
  const Json whole = answer({});
  EXPECT_GT(whole.size(), 64u);
  EXPECT_EQ(whole, answer(checkpoint));
  EXPECT_EQ(answer({"--max-tokens", "3"}).size(), 3u);
  const Json plain = answer({"--generation-config", "vllm"});
  EXPECT_NE(plain, whole);
  EXPECT_EQ(plain, answer({"--temperature", "1", "--top-k", "0", "--top-p", "1"}));
}

TEST(Options, ThatNeedAnotherAreRefused) {
  for (const auto& [args, what] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"--logprobs", "1"}, "--logprobs needs --json or --output"},
           {{"--prompt-logprobs", "1"}, "--prompt-logprobs needs --json or --output"},
           {{"--system", "Be short."}, "--system needs --chat"},
           {{"--no-thinking"}, "--no-thinking needs --chat"},
           {{"--generation-config", "vllm"}, "--chat"},
           {{"--unordered"}, "--unordered needs several prompts"}}) {
    std::vector<std::string> all = {"generate", kTinyTales, "--prompt", "a"};
    all.insert(all.end(), args.begin(), args.end());
    const Result r = run(all);
    EXPECT_EQ(r.status, 2);
    EXPECT_EQ(r.num_error_lines(), 1) << r.err;
    EXPECT_THAT(r.err, HasSubstr(what));
  }
  const Result unused = run(generate({"--prompts-file", "-", "--system", "Be short.", "--quiet"}),
                            "{\"prompt\": \"a\", \"max_tokens\": 1}\n");
  EXPECT_THAT(unused.err, StartsWith("warning: no line has messages"));
}

TEST(PromptsFile, SystemOptionIsForConversationsWithoutASystemMessage) {
  const Result r = run(
      generate({"--prompts-file", "-", "--system", "Be short.", "--json", "--max-tokens", "1"}),
      R"({"messages": [{"role": "user", "content": "Hi"}]})"
      "\n"
      R"({"messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi"}]})"
      "\n");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(lines(r.out).at(0)["prompt_token_ids"], lines(r.out).at(1)["prompt_token_ids"]);
}

const char* const kLine = R"({"prompt": "Once", "max_tokens": 2})";

// The second line is written only after the first one is answered, and half of it waits for the
// rest.
TEST(Stdin, IsAnsweredAsItComes) {
  const TempFile out;
  const auto wait_for = [&](int count) {
    return "while [ \"$(grep -c . " + out.path() + ")\" -lt " + std::to_string(count) +
           " ]; do sleep 0.05; done; ";
  };
  const std::string line = std::string("'") + kLine + "'";
  const Result r = run_in_shell(
      ": > " + out.path() + "; { echo " + line + "; " + wait_for(1) +
          "printf '{\"prompt\": '; sleep 0.1; echo '\"a\", \"max_tokens\": 1}'; " + wait_for(2) +
          "printf %s " + line + "; } | timeout 120 \"$@\" > " + out.path(),
      generate({"--prompts-file", "-", "--json"}));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(indices(lines(out.read())), (std::vector{0, 1, 2}));
}

TEST(Stdin, MayBeEndless) {
  const Result r = run_in_shell(std::string("yes '") + kLine + "' | \"$@\" | head -n 3",
                                generate({"--prompts-file", "-", "--json"}));
  EXPECT_EQ(lines(r.out).size(), 3u);
  EXPECT_EQ(r.err, "");
  // Lines that need no step of the engine do not hide Ctrl-C.
  const Result blank = run_in_shell("yes '' | timeout -s INT 1 \"$@\"; [ $? = 124 ]",
                                    generate({"--prompts-file", "-", "--json"}));
  EXPECT_EQ(blank.status, 0);
}

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
  const Result a = run(generate({"--prompts-file", in.path(), "--output", ordered.path()}));
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
    if (kills_worker) args.insert(args.end(), {"-tp", "2"});
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
  const std::string text = lines(run(with("--json")).out).at(0)["text"];
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
