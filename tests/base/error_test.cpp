#include "nanovllm/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "nanovllm/base/check.h"

namespace nanovllm {
namespace {

using ::testing::ThrowsMessage;

// A client may send any character. what() is a C string, so a NUL would cut off what was wrong.
TEST(UserError, TextOfAClientIsWholeAndInOneLine) {
  const std::string sent("a\0b\nc\x1b[31m\x7f é \xff", 16);
  const std::string shown = "role a\\x00b\\nc\\x1b[31m\\x7f é \\xff is unknown";
  EXPECT_THAT([&] { fail("role {} is unknown", sent); }, ThrowsMessage<UserError>(shown));
  EXPECT_THAT([&] { require(false, "role {} is unknown", sent); }, ThrowsMessage<UserError>(shown));
  EXPECT_THAT([&] { throw PromptTooLong("role " + sent + " is unknown"); },
              ThrowsMessage<PromptTooLong>(shown));
  EXPECT_EQ(std::string(UserError(UserError(shown).what()).what()), shown);
}

}  // namespace
}  // namespace nanovllm
