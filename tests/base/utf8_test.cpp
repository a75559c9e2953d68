#include "nanovllm/base/strings/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nanovllm/base/error.h"

namespace nanovllm::testing {
namespace {

TEST(Utf8, ErrorNamesTheFirstWrongByte) {
  EXPECT_NO_THROW(require_utf8("", "here"));
  EXPECT_NO_THROW(require_utf8("H\xc3\xa9llo, \xe4\xb8\x96\xe7\x95\x8c \xf0\x9f\xa6\x8a", "here"));
  const auto expect_refused = [](std::string_view text, const std::string& error) {
    EXPECT_THAT([&] { require_utf8(text, "here"); }, ::testing::ThrowsMessage<UserError>(error));
  };
  expect_refused("\xff", "here: byte 1 (0xff) is not valid UTF-8");
  expect_refused("eight bytes and \x80 and \xff", "here: byte 17 (0x80) is not valid UTF-8");
  expect_refused("cut \xe4\xb8", "here: byte 5 (0xe4) is not valid UTF-8");
  expect_refused("surrogate \xed\xa0\x80", "here: byte 11 (0xed) is not valid UTF-8");
}

TEST(Utf8, OnlyWellFormedCharactersHaveALength) {
  EXPECT_EQ(character_len("ab"), 1u);
  EXPECT_EQ(character_len("\xc3\xa9?"), 2u);
  EXPECT_EQ(character_len("\xe4\xb8\x96?"), 3u);
  EXPECT_EQ(character_len("\xf0\x9f\xa6\x8a?"), 4u);
  // A continuation, an overlong form, a surrogate, a value past U+10FFFF, and one that is cut.
  for (const char* wrong : {"\x80", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe4\xb8"})
    EXPECT_EQ(character_len(wrong), 0u) << wrong;
}

}  // namespace
}  // namespace nanovllm::testing
