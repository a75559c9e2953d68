#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>

#include "nanovllm/base/json.h"
#include "pty.h"

namespace nanovllm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kBackspace = "\x7f", kLeft = "\x1b[D", kUp = "\x1b[A", kDown = "\x1b[B";
const std::string kPaste = "\x1b[200~", kPasteEnd = "\x1b[201~";

std::string contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// `nanovllm chat` whose answers have one token.
class Chat : public Terminal {
 public:
  explicit Chat(const std::vector<std::string>& environment = {})
      : Terminal({"chat", kTinyTales, "--quiet", "--max-tokens", "1"}, environment) {
    read_until_prompt();
  }
  /// Types `keys` and Enter, and returns the message that was sent.
  std::string sent(const std::string& keys) {
    type(keys + "\r");
    return last_message();
  }
  std::string last_message() {
    read_until_prompt();
    const std::string file = folder_ / std::to_string(++num_saved_);
    say("/save " + file);
    const Json messages = Json::parse(contents(file))["messages"];
    return messages.size() < 2 ? "" : messages[messages.size() - 2]["content"].get<std::string>();
  }

 private:
  TemporaryFolder folder_;
  int num_saved_ = 0;
};

// The locale of these tests is C.
TEST(LineEditor, TakesEveryCharacter) {
  Chat chat;
  for (const char* text : {"Grüße", "海", "e\u0301te\u0301", "👍🏽", "אב"})
    EXPECT_EQ(chat.sent(text), text);
  EXPECT_EQ(chat.sent("a\xff"), "a\uFFFD");
  EXPECT_EQ(chat.sent("e\u0301x" + kLeft + kBackspace), "x")
      << "a combining character is no position";
}

TEST(LineEditor, HasTheKeysOfAShell) {
  Chat chat;
  const std::string home = "\x01", kill_to_end = "\x0b", kill_word = "\x17", yank = "\x19";
  const std::string word_left = "\033b", del = "\x1b[3~", end = "\x05", kill_line = "\x15";
  EXPECT_EQ(chat.sent("fxo" + kLeft + kBackspace + "o"), "foo");
  EXPECT_EQ(chat.sent("bä海" + kLeft + kBackspace + "r"), "br海");
  EXPECT_EQ(chat.sent("two" + home + "one " + end + " three"), "one two three");
  EXPECT_EQ(chat.sent("one two three" + word_left + kill_to_end + home + yank + " "),
            "three one two ");
  EXPECT_EQ(chat.sent("one two" + kill_word + "three"), "one three");
  EXPECT_EQ(chat.sent("xone" + home + del), "one");
  EXPECT_EQ(chat.sent("one" + kill_line + "two"), "two");
  EXPECT_EQ(chat.sent("\x1b[15~\x1b[24~ok\t"), "ok") << "keys without a meaning do nothing";
}

TEST(LineEditor, APasteIsOneMessage) {
  Chat chat;
  EXPECT_EQ(chat.sent(kPaste + "one\r\ntwo\rthree\n\n" + kPasteEnd), "one\ntwo\nthree");
  EXPECT_EQ(chat.sent("a " + kPaste + "/reset\n\tb\x03\x1b[A" + kPasteEnd + "c"),
            "a /reset\n\tb[Ac");
  std::string tall;
  for (int i = 0; i < 100; ++i) tall += std::to_string(i) + "\n";
  EXPECT_EQ(chat.sent(kPaste + tall + kPasteEnd + "end" + kUp + kUp + "x"),
            tall.substr(0, tall.size() - 6) + "98x\n99\nend");
}

TEST(LineEditor, AMessageCanHaveSeveralLines) {
  Chat chat;
  EXPECT_EQ(chat.sent("one\033\rtwo"), "one\ntwo");
  EXPECT_EQ(chat.sent("\"\"\"one\r\r two\"\"\""), "one\n\n two");
  EXPECT_EQ(chat.sent("\"\"\"\r/reset\r\"\"\""), "/reset");
  EXPECT_EQ(chat.sent("\"\"\"one\rtwo" + kUp + "x" + kDown + "\"\"\""), "xone\ntwo");
}

TEST(LineEditor, HistoryIsKeptInAPrivateFile) {
  const TemporaryFolder state;
  const std::vector<std::string> environment = {"XDG_STATE_HOME=" + (state / "")};
  const std::string file = state / "nanovllm/history";
  {
    Chat chat(environment);
    chat.sent("a\\n");
    chat.sent(kPaste + "one\ntwo" + kPasteEnd);
    EXPECT_THAT(contents(file),
                AllOf(HasSubstr("a\\\\n\n/save "), HasSubstr("\none\\ntwo\n/save ")));
    struct stat status {};
    ASSERT_EQ(::stat(file.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    EXPECT_EQ(chat.sent(kUp + kUp), "one\ntwo");
    EXPECT_EQ(chat.sent("draft" + kUp + kDown + "!"), "draft!");
  }
  Chat chat(environment);
  // The latest two are "draft!" and the "/save" after it.
  EXPECT_EQ(chat.sent(kUp + kUp + "?"), "draft!?");
}

TEST(LineEditor, AHistoryThatCannotBeUsedIsNoError) {
  const TemporaryFolder state;
  std::filesystem::create_directories(state / "nanovllm/history");
  Chat chat({"XDG_STATE_HOME=" + (state / "")});
  EXPECT_EQ(chat.sent("hello"), "hello");
  EXPECT_EQ(chat.sent(kUp + kUp + "!"), "hello!");
}

TEST(LineEditor, ANarrowTerminalChangesNoText) {
  Chat chat;
  chat.resize(20);
  const std::string text = "This text has many more columns than the terminal, 海海海海海海海海海.";
  chat.type(text);
  chat.resize(30);
  EXPECT_EQ(chat.sent(kLeft + "!"), text.substr(0, text.size() - 1) + "!.");
}

}  // namespace
}  // namespace nanovllm::testing
