#include "nanovllm/text/unicode.h"

#include <gmock/gmock.h>

#include <sstream>

#include "nanovllm/base/strings/utf8.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

std::string nfc(const std::string& text) {
  std::string storage;
  return std::string(to_nfc(text, storage));
}

void append_code_point(std::string& out, char32_t c) {
  const auto byte = [&](char32_t b) { out += static_cast<char>(b); };
  if (c < 0x80) return byte(c);
  if (c < 0x800) return byte(0xC0 | c >> 6), byte(0x80 | (c & 0x3F));
  if (c < 0x10000)
    return byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 0x3F)), byte(0x80 | (c & 0x3F));
  byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 0x3F)), byte(0x80 | (c >> 6 & 0x3F)),
      byte(0x80 | (c & 0x3F));
}

TEST(Nfc, AgreesWithTheFixture) {
  for (const Json& row : read_json_lines(kFixtures + "/nfc.jsonl")) {
    const auto text = row["text"].get<std::string>(), expected = row["nfc"].get<std::string>();
    EXPECT_EQ(nfc(text), expected) << text;
    EXPECT_EQ(nfc(expected), expected) << text;
    EXPECT_EQ(nfc("x\u00e9" + text + "\u4f60"), "x\u00e9" + expected + "\u4f60") << text;
  }
}

// Unicode's own test. Each line has the columns c1 to c5; c2 is the NFC of c1, c2 and c3, and c4 is
// the NFC of c4 and c5.
TEST(Nfc, PassesUnicodesOwnTest) {
  const std::string path = kSharedData + "/conformance/NormalizationTest.txt";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  std::ifstream in(path);
  int lines = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#' || line[0] == '@') continue;
    std::vector<std::string> column(5);
    std::istringstream columns(line);
    for (std::string& text : column) {
      std::string codes;
      std::getline(columns, codes, ';');
      std::istringstream words(codes);
      for (std::string code; words >> code;)
        append_code_point(text, static_cast<char32_t>(std::stoul(code, nullptr, 16)));
    }
    for (const int i : {0, 1, 2}) EXPECT_EQ(nfc(column[i]), column[1]) << line;
    for (const int i : {3, 4}) EXPECT_EQ(nfc(column[i]), column[3]) << line;
    // Two columns in the middle of other text.
    EXPECT_EQ(nfc("x\u00e9" + column[2] + "\u4f60" + column[4] + "z"),
              "x\u00e9" + column[1] + "\u4f60" + column[3] + "z")
        << line;
    ++lines;
  }
  EXPECT_GT(lines, 15000);
}

TEST(Nfc, NormalTextIsNotCopied) {
  const std::string text = "ascii, \u00e9\u4f60\u05b0\u0e49 \U0001F600";
  std::string storage;
  EXPECT_EQ(to_nfc(text, storage).data(), text.data());
}

TEST(Utf8, ReplacesMaximalSubparts) {
  const auto replaced = [](std::string_view bytes) {
    std::string out;
    EXPECT_EQ(append_utf8(out, bytes, /*at_end=*/true), bytes.size());
    return out;
  };
  // Unicode 15, section 3.9, tables 3-8 to 3-11.
  EXPECT_EQ(replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(replaced("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
}

TEST(Utf8, HoldsBackIncompleteCharacters) {
  std::string out;
  EXPECT_EQ(append_utf8(out, "a\xF0\x9F\x98", /*at_end=*/false), 1);
  EXPECT_EQ(append_utf8(out, "\xF0\x28", /*at_end=*/false), 2);
  EXPECT_EQ(out, "a\uFFFD(");
}

TEST(Utf8, NextCodePointReadsWhatIsWritten) {
  std::string all;
  std::vector<char32_t> expected;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c == 0xD800) c = 0xE000;
    append_code_point(all, c);
    expected.push_back(c);
  }
  EXPECT_TRUE(is_utf8(all));
  const char* p = all.data();
  for (const char32_t c : expected) ASSERT_EQ(next_code_point(p), c);
}

}  // namespace
}  // namespace nanovllm
