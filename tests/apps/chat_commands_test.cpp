#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "nanovllm/base/json.h"
#include "process.h"
#include "pty.h"
#include "tests/json_file.h"

namespace nanovllm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kTinyTales = std::string(NANOVLLM_SOURCE_DIR) + "/models/tiny-tales";

/// A chat whose lines come from a pipe.
Result chat(const std::string& lines, std::vector<std::string> options = {}) {
  options.insert(options.begin(), {"chat", kTinyTales, "--dtype", "float32", "--temperature", "0"});
  return run(options, lines);
}

Json messages_in(const std::string& path) { return json_file(path)["messages"]; }

TEST(ChatCommands, AConversationIsSavedAndLoaded) {
  const TemporaryFolder folder;
  const std::string first = folder / "first.json", second = folder / "second.json";
  Result result =
      chat("Hello\n/save " + first + "\n", {"--system", "Be brief.", "--max-tokens", "20"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json saved = messages_in(first);
  ASSERT_EQ(saved.size(), 3u);
  EXPECT_EQ(saved[0], Json({{"role", "system"}, {"content", "Be brief."}}));
  EXPECT_EQ(saved[1], Json({{"role", "user"}, {"content", "Hello"}}));
  EXPECT_EQ(saved[2]["role"], "assistant");
  EXPECT_EQ(saved[2]["content"].get<std::string>() + "\n", result.out);

  // The conversation continues as if it had not been interrupted.
  const std::string next =
      chat("Hello\nTell me more\n", {"--system", "Be brief.", "--max-tokens", "20"}).out;
  result =
      chat("/load " + first + "\nTell me more\n/save " + first + "\n/reset\n/save " + second + "\n",
           {"--max-tokens", "20"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(saved[2]["content"].get<std::string>() + "\n" + result.out, next);
  EXPECT_EQ(messages_in(first).size(), 5u);
  EXPECT_EQ(messages_in(second), Json::array({saved[0]}));
}

TEST(ChatCommands, WrongFilesAreOneLineAndTheConversationContinues) {
  const TemporaryFolder folder;
  const std::string file = folder / "file.json";
  const auto error_of = [&](const std::string& command) {
    const Result result = chat(command + "\nHello\n", {"--max-tokens", "1"});
    EXPECT_EQ(result.status, 2);
    EXPECT_EQ(result.num_error_lines(), 1) << result.err;
    EXPECT_FALSE(result.out.empty());
    return result.err;
  };
  EXPECT_THAT(error_of("/save"), HasSubstr("/save needs the name of a file"));
  EXPECT_THAT(error_of("/load"), HasSubstr("/load needs the name of a file"));
  EXPECT_THAT(error_of("/save /"), HasSubstr("/ exists already"));
  const std::string missing = folder / "missing/file.json";
  EXPECT_THAT(error_of("/save " + missing), HasSubstr(missing + ": No such file"));
  EXPECT_THAT(error_of("/load " + missing), HasSubstr(missing + ": No such file"));
  EXPECT_THAT(error_of("/load /"), HasSubstr("/: not a regular file"));
  const auto error_of_file = [&](const std::string& text) {
    std::ofstream(file) << text;
    return error_of("/load " + file);
  };
  EXPECT_THAT(error_of_file("no JSON"), HasSubstr(file + ": not valid JSON"));
  EXPECT_THAT(error_of_file("[]"), HasSubstr("must be an object with a list of messages"));
  EXPECT_THAT(
      error_of_file(R"({"messages": [{"role": "user", "content": "x"}, {"role": "user"}]})"),
      HasSubstr("message 2 must be an object with the texts role and content"));
  EXPECT_THAT(error_of_file(R"({"messages": ["x"]})"), HasSubstr("message 1 must be"));
  // A file that another program has written is not replaced.
  EXPECT_THAT(error_of("/save " + file), HasSubstr(file + " exists already"));
}

TEST(ChatCommands, AFullDiskKeepsTheOldFile) {
  const TemporaryFolder folder;
  const std::string file = folder / "file.json";
  const std::string save = "/save " + file + "\n";
  const std::string system = "/system " + std::string(1400, 'x') + "\n";
  // Files have at most 2 blocks of 512 bytes.
  const Result result =
      Process{.program = "/bin/sh", .input = save + system + save + "Hello\n"}.run(
          {"-c", "ulimit -f 2; exec \"$@\"", "sh", NANOVLLM_BINARY, "chat", kTinyTales,
           "--max-tokens", "1"});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err, "error: " + file + ": File too large\n");
  EXPECT_EQ(messages_in(file), Json::array());
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / ""))
    ++num_files, (void)entry;
  EXPECT_EQ(num_files, 1u);
}

TEST(ChatCommands, RegenerateAnswersTheLastMessageAgain) {
  const TemporaryFolder folder;
  const std::string file = folder / "file.json";
  Result result = chat("/regenerate\n");
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err, "error: there is nothing to answer yet\n");
  result = chat("Hello\n/regenerate\n/save " + file + "\n", {"--max-tokens", "10"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json saved = messages_in(file);
  ASSERT_EQ(saved.size(), 2u);
  const std::string answer = saved[1]["content"].get<std::string>() + "\n";
  EXPECT_EQ(result.out, answer + answer);
}

TEST(ChatCommands, ParamsShowsAndSetsSamplingParameters) {
  Result result = chat(
      "/params\n/params stop END\n/params = \n/params top_k = 5\n/params top_k\n/params stop\n"
      "/params max_tokens\n/params max_tokens 7\n/params max_tokens\n");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("  temperature         0.0    Sampling temperature"));
  EXPECT_THAT(result.out, HasSubstr("  skip_special_tokens true   false: Keep special tokens"));
  EXPECT_THAT(result.out, Not(HasSubstr("  n ")));
  EXPECT_THAT(result.out, Not(HasSubstr("repeatable")));  // that is about the command line
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), 80u) << line;
  EXPECT_THAT(result.out, HasSubstr("\n  top_k               5      Draw"));
  EXPECT_THAT(result.out, HasSubstr("\n  stop                [\"END\"] Stop"));
  EXPECT_THAT(result.out, HasSubstr("\n  max_tokens          null   Maximum"));
  EXPECT_THAT(result.out, HasSubstr("\n  max_tokens          7      Maximum"));
  for (const auto& [command, error] :
       {std::pair("n 2", "'n' is not a sampling parameter of a conversation"),
        std::pair("foo", "'foo' is not a sampling parameter"),
        std::pair("temprature 1", "did you mean 'temperature'?"),
        std::pair("temperature hot", "/params: temperature must be a number"),
        std::pair("top_p 3", "/params: top_p is 3; it must be above 0 and at most 1")}) {
    result = chat(std::string("/params ") + command + "\n/params top_p\n");
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.err, HasSubstr(error));
    EXPECT_THAT(result.out, HasSubstr("top_p               0.95"));
  }
}

TEST(ChatCommands, ExitAndQuitEndIt) {
  for (const char* command : {"/exit", "/quit"})
    EXPECT_EQ(chat(std::string(command) + "\nHello\n").out, "");
  const Result more = chat("/exit now\n");
  EXPECT_EQ(more.status, 2);
  EXPECT_EQ(more.err, "error: nothing may follow /exit\n");
}

TEST(ChatCommands, ABlockOfSeveralLinesIsOneMessage) {
  const TemporaryFolder folder;
  const std::string file = folder / "file.json";
  const Result result =
      chat("\"\"\"\n/reset now\nb\"\"\"\n/save " + file + "\n", {"--max-tokens", "4"});
  ASSERT_EQ(result.status, 0) << result.err;
  const Json saved = messages_in(file);
  ASSERT_EQ(saved.size(), 2u);
  EXPECT_EQ(saved[0]["content"], "/reset now\nb");
}

TEST(ChatCommands, AFullContextSaysWhatToDo) {
  Result result = chat("Hello " + std::string(300, 'x') + "\n", {"--max-model-len", "64"});
  EXPECT_EQ(result.status, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("tokens and the context 64: /reset or /system begins a new "),
                    HasSubstr("; --max-model-len 2048 allows a longer one\n")));

  Terminal terminal({"chat", kTinyTales, "--quiet", "--max-model-len", "64", "--ignore-eos"},
                    {"NO_COLOR=1"});
  terminal.read_until_prompt();
  EXPECT_THAT(terminal.say("Tell me a story."),
              HasSubstr("\n[cut by length]\nThe context of 64 tokens is full: /reset or /system"));
  terminal.say("/reset");
  terminal.say("/params max_tokens 30");
  EXPECT_THAT(terminal.say("Tell me a long and very sad story about a cat and a dog, please."),
              HasSubstr(" of the context's 64 tokens are left: /reset or /system"));
}

}  // namespace
}  // namespace nanovllm::testing
