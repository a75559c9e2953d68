#include "nanovllm/text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace nanovllm::testing {
namespace {

/// Cuts the whole text at the stop string that ends first, or at the longest of those that end
/// there.
std::string cut(const std::string& text, const std::vector<std::string>& stop, std::string& found) {
  for (size_t end = 1; end <= text.size(); ++end) {
    for (const std::string& s : stop)
      if (s.size() > found.size() && text.substr(0, end).ends_with(s)) found = s;
    if (!found.empty()) return text.substr(0, end - found.size());
  }
  return text;
}

TEST(StopStrings, PiecesOfAnyLengthGiveTheResultOfTheWholeText) {
  std::mt19937 random(1);
  const auto text_of = [&](int most) {
    std::string text;
    for (auto n = 1 + random() % static_cast<unsigned>(most); n > 0; --n)
      text += "abc"[random() % (1 + random() % 3)];
    return text;
  };
  int num_found = 0;
  for (int round = 0; round < 20'000; ++round) {
    const std::string text = text_of(30);
    std::vector<std::string> stop;
    for (auto n = 1 + random() % 3; n > 0; --n) stop.push_back(text_of(6));
    std::string expected_stop;
    const std::string expected = cut(text, stop, expected_stop);
    const StopPatterns patterns(stop);
    StopStrings checker(patterns);
    std::string shown;
    for (size_t i = 0; i < text.size() && !checker.matched();) {
      const size_t n = std::min<size_t>(1 + random() % 5, text.size() - i);
      shown += checker.push(text.substr(i, n));
      i += n;
      EXPECT_TRUE(expected.starts_with(shown)) << "shown too early: " << shown << " of " << text;
    }
    if (!checker.matched()) shown += checker.finish();
    EXPECT_EQ(shown, expected) << text;
    EXPECT_EQ((checker.matched() ? *checker.matched() : ""), expected_stop) << text;
    num_found += expected_stop.empty() ? 0 : 1;
  }
  EXPECT_GT(num_found, 5'000);
}

TEST(StopStrings, IgnoredMatchIsTextAndItsEndMayBeginTheNext) {
  const std::vector<std::string> stop = {"aba"};
  const StopPatterns patterns(stop);
  StopStrings checker(patterns);
  EXPECT_EQ(checker.push("xaba", /*ignore=*/true), "xab");  // "a" may begin another
  EXPECT_EQ(checker.push("ba"), "");
  ASSERT_NE(checker.matched(), nullptr);
  EXPECT_EQ(*checker.matched(), "aba");
}

TEST(StopStrings, TextIsShownAsSoonAsItIsCertain) {
  const std::vector<std::string> stop = {"\nUser:"};
  const StopPatterns patterns(stop);
  StopStrings checker(patterns);
  EXPECT_EQ(checker.push("one\n"), "one");
  EXPECT_EQ(checker.push("Us"), "");
  EXPECT_EQ(checker.push("e it"), "\nUse it");
  EXPECT_EQ(checker.push("\nUser"), "");
  EXPECT_EQ(checker.finish(), "\nUser");
}

TEST(StopStrings, TimeIsLinear) {
  const std::vector<std::string> stop = {std::string(20'000, 'a') + "b"};
  const StopPatterns patterns(stop);
  StopStrings checker(patterns);
  std::string shown;
  for (int i = 0; i < 200; ++i) shown += checker.push(std::string(1'000, 'a'));
  EXPECT_EQ(shown.size(), 180'000u);
}

}  // namespace
}  // namespace nanovllm::testing
