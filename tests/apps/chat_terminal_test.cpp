#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "nanovllm/base/json.h"
#include "pty.h"
#include "tests/json_file.h"

namespace nanovllm::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";

std::vector<std::string> chat_with(const std::vector<std::string>& options) {
  std::vector<std::string> args = {"chat", kTinyTales, "--quiet"};
  args.insert(args.end(), options.begin(), options.end());
  return args;
}

TEST(ChatOnATerminal, DimsThoughtsAndHidesTheirTags) {
  const std::vector<std::string> options = {"--dtype", "float32",      "--sample-seed",
                                            "1",       "--max-tokens", "200"};
  const std::string question = "Tell me about the sea.";
  std::vector<std::string> args = {"chat", kTinyTales};
  args.insert(args.end(), options.begin(), options.end());
  const Result piped = run(args, question + "\n");
  const std::string begin = "<think>\n", end = "\n</think>\n\n";
  const size_t at = piped.out.find(end);
  ASSERT_THAT(piped.out, StartsWith(begin));
  ASSERT_NE(at, std::string::npos) << piped.out;
  const std::string thoughts = piped.out.substr(begin.size(), at - begin.size());
  const std::string answer = piped.out.substr(at + end.size());
  ASSERT_GT(thoughts.size(), 5u);

  Terminal chat(chat_with(options));
  chat.read_until_prompt();
  EXPECT_EQ(chat.say(question), (kDim + thoughts) + kPlain + "\n\n" + answer);
  chat.type(kCtrlD);
  EXPECT_EQ(chat.wait(), 0);
}

TEST(ChatOnATerminal, SaysWhatItIsAndHowFastItWas) {
  Terminal chat({"chat", kTinyTales, "--max-model-len", "300", "--max-tokens", "3"});
  EXPECT_THAT(chat.read_until_prompt(),
              StartsWith("\n" + std::string(kDim) + "tiny-tales, 300 tokens of context, "));
  EXPECT_THAT(chat.say("Hello"),
              ContainsRegex("\n.*\\[cut by length\\] 3 tokens, .* tokens/s, first token after "));
  chat.type(kCtrlD);
  EXPECT_EQ(chat.wait(), 0);
}

TEST(ChatOnATerminal, HasNoStylesIfTheUserWantsNone) {
  for (const char* variable : {"NO_COLOR=1", "TERM=dumb"}) {
    Terminal chat(chat_with({"--max-tokens", "20", "--temperature", "0"}), {variable});
    chat.read_until("> ");
    chat.type("Introduce yourself.\n");
    EXPECT_THAT(chat.read_until("</think>"), AllOf(HasSubstr("<think>"), Not(HasSubstr("\x1b"))));
    chat.read_until("\n> ");
    chat.type(kCtrlD);
    EXPECT_EQ(chat.wait(), 0);
    EXPECT_EQ(chat.unread().find('\x1b'), std::string::npos) << chat.unread();
  }
}

/// The demo model with a tokenizer that writes these characters at the beginning of each word.
class HostileModel {
 public:
  HostileModel() {
    for (const auto& file : std::filesystem::directory_iterator(kTinyTales))
      if (file.path().filename() != "tokenizer.json")
        std::filesystem::create_symlink(file.path(), folder_ / file.path().filename());
    Json tokenizer = json_file(kTinyTales + "/tokenizer.json");
    tokenizer["decoder"] = {
        {"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"},
           {"pattern", {{"String", "\u0120"}}},  // how the vocabulary writes a space
           {"content", "\x1b]0;title\x07\x1b[31m\r\x7f\u009b2J"}},
          {{"type", "Fuse"}}}}};
    std::ofstream(folder_ / "tokenizer.json") << tokenizer;
  }
  std::string path() const { return folder_ / ""; }

 private:
  TemporaryFolder folder_;
};

constexpr const char* kShown = "\\x1b]0;title\\x07\\x1b[31m\\r\\x7f\\x9b2J";

TEST(ChatOnATerminal, ModelsTextHasNoEscapeSequences) {
  const HostileModel model;
  Terminal chat(
      {"chat", model.path(), "--temperature", "0", "--max-tokens", "20", "--no-thinking"});
  chat.read_until_prompt();
  const std::string answer = chat.say("Hello");
  EXPECT_THAT(answer, HasSubstr(kShown));
  for (const char* forbidden : {"\x1b]", "\x1b[31m", "\x07", "\x7f", "\u009b"})
    EXPECT_EQ(answer.find(forbidden), std::string::npos) << answer;
  chat.type(kCtrlD);
  EXPECT_EQ(chat.wait(), 0);
}

TEST(FiltersOnATerminal, TextHasNoEscapeSequences) {
  const HostileModel model;
  const std::string ids = run({"tokenize", kTinyTales}, "once upon a time\n").out;
  Terminal terminal({"detokenize", model.path()});
  terminal.type(ids);
  EXPECT_THAT(terminal.read_until(kShown), HasSubstr(kShown));
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
}

TEST(ChatOnATerminal, CtrlDEndsIt) {
  Terminal chat(chat_with({}));
  chat.read_until_prompt();
  chat.type(kCtrlD);
  EXPECT_EQ(chat.wait(), 0);
  EXPECT_TRUE(chat.is_cooked());
}

TEST(ChatOnATerminal, CtrlCClearsTheTextAndTheSecondOneEndsIt) {
  Terminal chat(chat_with({}));
  chat.read_until_prompt();
  chat.type(std::string("half a line") + kCtrlC);
  EXPECT_THAT(chat.read_until_prompt(), HasSubstr("half a line^C\n> "));
  EXPECT_THAT(chat.say("/foo"), HasSubstr("'/foo' is not a command"));
  chat.type(kCtrlC);  // not the second one, since a text was entered after the first
  EXPECT_THAT(chat.read_until_prompt(), HasSubstr("Ctrl-C again, or Ctrl-D, ends the program."));
  chat.type(kCtrlC);
  EXPECT_EQ(chat.wait(), 130);
  EXPECT_TRUE(chat.is_cooked());
}

TEST(ChatOnATerminal, SignalsRestoreTheTerminal) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Terminal chat(chat_with({}));
    chat.read_until_prompt();
    chat.send(signal);
    EXPECT_EQ(chat.wait(), 128 + signal);
    EXPECT_TRUE(chat.is_cooked());
  }
}

TEST(ChatOnATerminal, CtrlCEndsAnAnswerAndKeepsWhatWasPrinted) {
  const std::vector<std::string> options = {"--dtype", "float32",       "--sample-seed",
                                            "1",       "--no-thinking", "--ignore-eos"};
  std::vector<std::string> args = {"chat", kTinyTales, "--max-tokens", "600"};
  args.insert(args.end(), options.begin(), options.end());
  const std::string whole = run(args, "Tell me a story.\n").out;

  Terminal chat(chat_with(options));
  chat.read_until_prompt();
  chat.type("Tell me a story.\r");
  chat.read_until("\n");
  std::string answer = chat.read_until(whole.substr(0, 40));
  chat.type(kCtrlC);
  answer += chat.read_until_prompt();
  const std::string notice = "^C\nstopping after this step; press Ctrl-C again to end now\n";
  const size_t at = answer.find(notice);
  ASSERT_NE(at, std::string::npos) << answer;
  answer.erase(at, notice.size());
  // An answer that was not stopped could be as long as the context.
  EXPECT_LT(answer.size(), 2 * whole.size());
  const size_t common = std::min(answer.size() - 3, whole.size() - 1);  // without "\n> "
  EXPECT_EQ(answer.substr(0, common), whole.substr(0, common));

  EXPECT_THAT(chat.say("/nonsense"), HasSubstr("'/nonsense' is not a command"));
  chat.type("Go on.\r");
  chat.read_until("Go on.\n");
  chat.read_until(".");  // in the answer; before it Ctrl-C would end the program
  chat.type(kCtrlC);
  chat.read_until_prompt();
  chat.type(kCtrlC);  // the second one
  EXPECT_EQ(chat.wait(), 130);
  EXPECT_TRUE(chat.is_cooked());
}

TEST(GenerateOnATerminal, SaysAtOnceThatCtrlCWasNoticed) {
  Terminal generate({"generate", kTinyTales, "--prompt", "Once", "--prompt", "Once", "--ignore-eos",
                     "--max-tokens", "1900"});
  generate.read_until("/2 [");
  generate.type(kCtrlC);
  generate.read_until("\nstopping after this step; press Ctrl-C again to end now\n");
  EXPECT_EQ(generate.wait(), 130);
}

}  // namespace
}  // namespace nanovllm::testing
