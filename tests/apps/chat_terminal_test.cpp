#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <termios.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "nanovllm/base/json.h"
#include "process.h"

namespace nanovllm::testing {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

const std::string kTinyTales = std::string(NANOVLLM_SOURCE_DIR) + "/models/tiny-tales";
constexpr const char* kCtrlC = "\x03";
constexpr const char* kCtrlD = "\x04";
constexpr const char* kBackspace = "\x7f";
constexpr const char* kLeft = "\x1b[D";
constexpr const char* kUp = "\x1b[A";
constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";

/// `nanovllm chat`, or another command, on a separate pseudo-terminal.
class Chat {
 public:
  explicit Chat(std::vector<std::string> options, const std::string& model = kTinyTales,
                const std::string& command = "chat") {
    options.insert(options.begin(), {NANOVLLM_BINARY, command, model});
    std::vector<char*> argv;
    for (std::string& option : options) argv.push_back(option.data());
    argv.push_back(nullptr);
    pid_ = ::forkpty(&fd_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    ::setenv("TERM", "xterm", 1);
    ::setenv("LC_ALL", "C.UTF-8", 1);
    ::execv(NANOVLLM_BINARY, argv.data());
    ::_exit(127);
  }
  ~Chat() {
    if (pid_ > 0) ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0);
    ::close(fd_);
  }
  Chat(const Chat&) = delete;
  Chat& operator=(const Chat&) = delete;

  void type(const std::string& keys) const {
    ASSERT_EQ(::write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  /// Waits for `text` and returns the output from the last call to the end of `text`, with "\n" as
  /// line ends.
  std::string read_until(const std::string& text) {
    while (new_.find(text) == std::string::npos && read_some()) {
    }
    const size_t end = std::min(new_.find(text), new_.size() - text.size()) + text.size();
    std::string out = new_.substr(0, end);
    new_.erase(0, end);
    return out;
  }
  /// The same until a prompt of the line editor, which reads single keys.
  std::string read_until_prompt() {
    std::string out = read_until("\n> ");
    for (const auto end = Clock::now() + kPatience; is_cooked() && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_FALSE(is_cooked());
    return out;
  }
  /// Whether the terminal collects lines and echoes keys, as a shell expects it.
  bool is_cooked() const {
    termios modes{};
    EXPECT_EQ(::tcgetattr(fd_, &modes), 0);
    return (modes.c_lflag & (ICANON | ECHO)) == (ICANON | ECHO);
  }
  /// Waits for the end of the process and returns its exit status.
  int wait() {
    while (read_some()) {
    }
    int status = -1;
    for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return -1;
  }

 private:
  static constexpr std::chrono::seconds kPatience{60};

  // Returns false at the end of the output, or if no output comes for a long time.
  bool read_some() {
    pollfd waiting{fd_, POLLIN, 0};
    if (::poll(&waiting, 1, std::chrono::milliseconds(kPatience).count()) <= 0) return false;
    std::array<char, 4096> buffer;
    const ssize_t n = ::read(fd_, buffer.data(), buffer.size());
    for (ssize_t i = 0; i < n; ++i)
      if (buffer[i] != '\r') new_ += buffer[i];
    return n > 0;
  }

  pid_t pid_ = -1;
  int fd_ = -1;
  std::string new_;
};

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

  Chat chat(options);
  EXPECT_EQ(chat.read_until_prompt(), "/help lists the commands.\n> ");
  chat.type(question);
  chat.read_until(question);
  chat.type("\n");
  EXPECT_EQ(chat.read_until_prompt(),
            "\n" + (kDim + thoughts) + "\n" + kPlain + "\n\n" + answer + "> ");
  chat.type(kCtrlD);
  EXPECT_EQ(chat.wait(), 0);
}

/// The demo model with a tokenizer that writes these characters at the beginning of each word.
class HostileModel {
 public:
  HostileModel() {
    std::string name = ::testing::TempDir() + "chat_terminal_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) ADD_FAILURE() << name;
    path_ = name;
    for (const auto& file : std::filesystem::directory_iterator(kTinyTales))
      if (file.path().filename() != "tokenizer.json")
        std::filesystem::create_symlink(file.path(), path_ / file.path().filename());
    std::ifstream original(kTinyTales + "/tokenizer.json");
    Json tokenizer = Json::parse(original);
    tokenizer["decoder"] = {
        {"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"},
           {"pattern", {{"String", "\u0120"}}},  // how the vocabulary writes a space
           {"content", "\x1b]0;title\x07\x1b[31m\r\x7f\u009b2J"}},
          {{"type", "Fuse"}}}}};
    std::ofstream(path_ / "tokenizer.json") << tokenizer;
  }
  ~HostileModel() { std::filesystem::remove_all(path_); }
  HostileModel(const HostileModel&) = delete;
  HostileModel& operator=(const HostileModel&) = delete;
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

constexpr const char* kShown = "\\x1b]0;title\\x07\\x1b[31m\\r\\x7f\\x9b2J";

TEST(ChatOnATerminal, ModelsTextHasNoEscapeSequences) {
  const HostileModel model;
  Chat chat({"--temperature", "0", "--max-tokens", "20", "--no-thinking"}, model.path());
  chat.read_until_prompt();
  chat.type("Hello");
  chat.read_until("Hello");
  chat.type("\n");
  const std::string answer = chat.read_until_prompt();
  EXPECT_THAT(answer, HasSubstr(kShown));
  for (const char* forbidden : {"\x1b]", "\x1b[31m", "\x07", "\x7f", "\u009b"})
    EXPECT_EQ(answer.find(forbidden), std::string::npos) << answer;
  chat.type(kCtrlD);
  EXPECT_EQ(chat.wait(), 0);
}

TEST(FiltersOnATerminal, TextHasNoEscapeSequences) {
  const HostileModel model;
  const std::string ids = run({"tokenize", kTinyTales}, "once upon a time\n").out;
  Chat terminal({}, model.path(), "detokenize");
  terminal.type(ids);
  EXPECT_THAT(terminal.read_until(kShown), HasSubstr(kShown));
  terminal.type(kCtrlD);
  EXPECT_EQ(terminal.wait(), 0);
}

TEST(ChatOnATerminal, CtrlDAndCtrlCAtThePromptEndIt) {
  for (const auto& [key, status] : {std::pair(kCtrlD, 0), std::pair(kCtrlC, 130)}) {
    Chat chat({});
    chat.read_until_prompt();
    if (key == kCtrlC) chat.type("half a line");
    chat.type(key);
    EXPECT_EQ(chat.wait(), status);
    EXPECT_TRUE(chat.is_cooked());
  }
}

TEST(ChatOnATerminal, CtrlCEndsAnAnswerAndKeepsWhatWasPrinted) {
  const std::vector<std::string> options = {"--dtype", "float32",       "--sample-seed",
                                            "1",       "--no-thinking", "--ignore-eos"};
  std::vector<std::string> args = {"chat", kTinyTales, "--max-tokens", "600"};
  args.insert(args.end(), options.begin(), options.end());
  const std::string whole = run(args, "Tell me a story.\n").out;

  Chat chat(options);
  chat.read_until_prompt();
  chat.type("Tell me a story.");
  chat.read_until("story.");
  chat.type("\n");
  std::string answer = chat.read_until(whole.substr(0, 40));
  chat.type(kCtrlC);
  answer += chat.read_until_prompt();
  ASSERT_THAT(answer, EndsWith("\n> "));
  answer = answer.substr(1, answer.size() - 4);
  const size_t echo = answer.find("^C");
  ASSERT_NE(echo, std::string::npos);
  answer.erase(echo, 2);
  // An answer that was not stopped could be as long as the context.
  EXPECT_LT(answer.size(), 2 * whole.size());
  const size_t common = std::min(answer.size(), whole.size() - 1);
  EXPECT_EQ(answer.substr(0, common), whole.substr(0, common));

  chat.type("/nonsense\n");
  EXPECT_THAT(chat.read_until_prompt(), HasSubstr("'/nonsense' is not a command"));
  chat.type("Go on.\n");
  chat.read_until("Go on.\n");
  chat.read_until(".");  // in the answer; before it Ctrl-C would end the program
  chat.type(kCtrlC);
  chat.read_until_prompt();
  chat.type(kCtrlC);  // the second one
  EXPECT_EQ(chat.wait(), 130);
  EXPECT_TRUE(chat.is_cooked());
}

TEST(ChatOnATerminal, LinesCanBeEditedAndRecalled) {
  Chat chat({});
  chat.read_until_prompt();
  const auto expect_command = [&](const std::string& keys, const std::string& name) {
    chat.type(keys + "\n");
    EXPECT_THAT(chat.read_until_prompt(),
                HasSubstr("\nerror: '" + name + "' is not a command; /help lists them\n"));
  };
  const std::string left = kLeft, up = kUp, backspace = kBackspace;
  expect_command("/fxo" + left + backspace + "o", "/foo");
  expect_command("/b\u00e4\u6d77" + left + backspace + "r", "/br\u6d77");
  expect_command(up + up, "/foo");
  expect_command(up + "d", "/food");
  chat.type(kCtrlD);
  EXPECT_EQ(chat.wait(), 0);
}

}  // namespace
}  // namespace nanovllm::testing
