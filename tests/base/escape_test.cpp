#include "nanovllm/base/terminal/escape.h"

#include <gtest/gtest.h>

#include <sstream>

#include "nanovllm/base/terminal/logging.h"
#include "nanovllm/base/terminal/progress.h"

namespace nanovllm {
namespace {

TEST(Escape, EscapesEveryControlCharacter) {
  for (int c = 0; c < 0xa0; ++c) {
    if (c >= 0x20 && c < 0x7f) continue;
    const std::string text = c < 0x80 ? std::string(1, static_cast<char>(c))
                                      : std::string("\xc2") + static_cast<char>(c);
    const std::string escaped = escape_controls(text);
    EXPECT_EQ(escaped[0], '\\') << c;
    for (const char byte : escaped) EXPECT_TRUE(byte >= 0x20 && byte < 0x7f) << c;
  }
  EXPECT_EQ(escape_controls("a\x1b[31mb\r\n\t\x7f"), "a\\x1b[31mb\\r\\n\\t\\x7f");
  EXPECT_EQ(escape_controls("\xc2\x9b"
                            "31m"),
            "\\x9b31m");
}

TEST(Escape, LeavesTextAsItIs) {
  const std::string text = "Gr\u00fc\u00dfe, \u6d77 \U0001f600 \u00a0";
  EXPECT_EQ(escape_controls(text), text);
  EXPECT_EQ(escape_controls("two\n\tlines", true), "two\n\tlines");
  EXPECT_EQ(escape_controls("\r\x1b\n", true), "\\r\\x1b\n");
}

// A terminal that reads single bytes would take these for C1 control characters, and one that
// accepts overlong forms would take them for the characters that they encode.
TEST(Escape, EscapesBytesThatAreNotUtf8) {
  EXPECT_EQ(escape_controls("\x9b"), "\\x9b");
  EXPECT_EQ(escape_controls("a\xff"), "a\\xff");
  EXPECT_EQ(escape_controls("\xc2"), "\\xc2");
  EXPECT_EQ(escape_controls("\xc2\x1b"), "\\xc2\\x1b");
  EXPECT_EQ(escape_controls("\xc0\x9b"), "\\xc0\\x9b");
  EXPECT_EQ(escape_controls("\xe0\x82\x9b"), "\\xe0\\x82\\x9b");
  EXPECT_EQ(escape_controls("\xf0\x80\x82\x9b"), "\\xf0\\x80\\x82\\x9b");
  EXPECT_EQ(escape_controls("\xed\xa0\x80"), "\\xed\\xa0\\x80");
  EXPECT_EQ(escape_controls("\xe6\xb5"), "\\xe6\\xb5");
}

TEST(Escape, LogLinesAndProgressBarsAreEscaped) {
  ::testing::internal::CaptureStderr();
  log().warn("a file named {}", "x\x1b]0;title\x07\ny");
  { const ProgressBar bar("t\x1b[2Jitle", 1, true); }
  const std::string out = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(out.find("warning: a file named x\\x1b]0;title\\x07\\ny\n"), std::string::npos) << out;
  EXPECT_NE(out.find("t\\x1b[2Jitle"), std::string::npos) << out;
}

}  // namespace
}  // namespace nanovllm
