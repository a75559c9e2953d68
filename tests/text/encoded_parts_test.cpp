#include "nanovllm/text/tokenizer/encoded_parts.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <iostream>
#include <thread>

#include "nanovllm/text/chat_template.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;

const std::string kText(200, 'a');

TEST(EncodedParts, FindsWhatWasAdded) {
  EncodedParts parts(1 << 20);
  Ids ids = {7};
  EXPECT_FALSE(parts.find({"", false, kText}, ids));
  parts.add({"", false, kText}, Ids{1, 2});
  EXPECT_TRUE(parts.find({"", false, kText}, ids));
  EXPECT_EQ(ids, (Ids{7, 1, 2}));
  EXPECT_FALSE(parts.find({"", true, kText}, ids));
  EXPECT_FALSE(parts.find({"", false, kText + "a"}, ids));
  EXPECT_FALSE(parts.find({"another owner", false, kText}, ids));
}

TEST(EncodedParts, KeepsShortTextsOut) {
  EncodedParts parts(1 << 20);
  const std::string text(EncodedParts::kLeastBytes - 1, 'a');
  parts.add({"", false, text}, Ids{1});
  Ids ids;
  EXPECT_FALSE(parts.find({"", false, text}, ids));
  EXPECT_EQ(parts.num_bytes(), 0);
}

TEST(EncodedParts, IsBounded) {
  constexpr size_t kMost = 100'000;
  EncodedParts parts(kMost);
  parts.add({"", false, std::string(kMost, 'a')}, Ids{1});  // larger than all that may be kept
  EXPECT_EQ(parts.num_bytes(), 0);
  Random random(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = std::to_string(i) + std::string(100 + random.below(2000), 'x');
    parts.add({"", false, text}, Ids(random.below(500)));
    ASSERT_LE(parts.num_bytes(), kMost);
    Ids ids;
    ASSERT_TRUE(parts.find({"", false, text}, ids));
  }
  EXPECT_GT(parts.num_bytes(), kMost / 2);
}

TEST(EncodedParts, KeepsAPartOnce) {
  EncodedParts parts(1 << 20);
  parts.add({"", false, kText}, Ids{1, 2});
  const size_t bytes = parts.num_bytes();
  EXPECT_GE(bytes, kText.size() + 2 * sizeof(int32_t));
  for (int i = 0; i < 3; ++i) parts.add({"", false, kText}, Ids{1, 2});
  EXPECT_EQ(parts.num_bytes(), bytes);
}

bool has(EncodedParts& parts, const std::string& owner, const std::string& text) {
  Ids ids;
  return parts.find({owner, false, text}, ids);
}

/// Texts of the same size.
std::string numbered(int i) { return fmt::format("{:0200}", i); }

// A text that one tenant sends changes nothing for another one's texts, whatever their hashes.
TEST(EncodedParts, OwnersDoNotSeeWhichTextsOthersHaveSent) {
  EncodedParts parts(10 << 20);
  for (int i = 0; i < 8000; ++i) parts.add({"attacker", false, numbered(i)}, Ids{1});
  for (int i = 0; i < 8000; ++i) parts.add({"victim", false, numbered(i)}, Ids{1});
  for (int i = 0; i < 8000; ++i) ASSERT_TRUE(has(parts, "attacker", numbered(i))) << i;
}

TEST(EncodedParts, WhoHoldsMostLosesTheOldestPart) {
  constexpr size_t kMost = 1 << 20;
  EncodedParts parts(kMost);
  for (int i = 0; i < 10; ++i) parts.add({"small", false, numbered(i)}, Ids{1});
  for (int i = 0; i < 10'000; ++i) {
    parts.add({"large", false, numbered(i)}, Ids{1});
    ASSERT_LE(parts.num_bytes(), kMost);
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(has(parts, "small", numbered(i)));
  EXPECT_FALSE(has(parts, "large", numbered(0)));
  EXPECT_TRUE(has(parts, "large", numbered(9'999)));
}

TEST(EncodedParts, ForgetsTheOwnerThatWasIdleForLongest) {
  EncodedParts parts(10 << 20);
  for (size_t i = 0; i < EncodedParts::kMaxOwners; ++i)
    parts.add({std::to_string(i), false, kText}, Ids{1});
  EXPECT_TRUE(has(parts, "0", kText));
  const size_t bytes = parts.num_bytes();
  parts.add({"new", false, kText}, Ids{1});
  EXPECT_EQ(parts.num_bytes(), bytes);
  EXPECT_TRUE(has(parts, "0", kText));
  EXPECT_FALSE(has(parts, "1", kText));
}

TEST(Tokenizer, ARequestToStopEndsTheWork) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  std::stop_source stop;
  const std::string text(1000, 'a');
  EXPECT_EQ(tokenizer->encode(text, true, {.stop = stop.get_token()}), tokenizer->encode(text));
  stop.request_stop();
  EXPECT_THROW(tokenizer->encode(text, true, {.stop = stop.get_token()}), Cancelled);
  const auto chat_template = ChatTemplate::load(kTinyTales);
  const Json context = {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
  EXPECT_NO_THROW(chat_template->prompt(context));
  EXPECT_THROW(chat_template->prompt(context, stop.get_token()), Cancelled);
}

/// Conversations that grow by a turn, of words, added tokens, white space and odd bytes.
void expect_same_ids(const std::string& folder, uint64_t seed) {
  const auto tokenizer = Tokenizer::load(folder);
  EncodedParts parts(200'000);
  Random random(seed);
  const std::vector<std::string> pieces = {
      "<|im_start|>", "<|im_end|>\n",   "<|endoftext|>", "<s>",
      "</s>",         "[INST]",         "<left>",        "<right>",
      "word",         "caf\u00e9s",     "\u00e9",        " ",
      "\n\n",         "the fox said, ", "123456",        "'ll",
      "\xff",         "\u4f60",         "e\u0301",       "  x",
      "<|eot_id|>"};
  size_t num_found = 0;
  for (int conversation = 0; conversation < 20; ++conversation) {
    std::string text;
    for (int turn = 0; turn < 12; ++turn) {
      const size_t length = random.below(60);
      for (size_t i = 0; i < length; ++i) text += pieces[4 + random.below(pieces.size() - 4)];
      text += pieces[random.below(pieces.size())];
      const size_t before = parts.num_bytes();
      const bool special = random.below(2) == 0;
      ASSERT_EQ(tokenizer->encode(text, special, {.known = &parts}),
                tokenizer->encode(text, special))
          << folder << ": " << text;
      num_found += parts.num_bytes() == before ? 1 : 0;
      ASSERT_EQ(tokenizer->encode(text, special, {.known = &parts, .owner = "another"}),
                tokenizer->encode(text, special));
    }
  }
  EXPECT_GT(num_found, 0);
}

TEST(EncodedParts, DoNotChangeTheIdsOfAnyTokenizer) {
  expect_same_ids(kTinyTales, 1);
  uint64_t seed = 2;
  for (const char* name : {"gpt2", "llama2", "llama3", "metaspace", "mistral"})
    expect_same_ids(kFixtures + "/" + name, seed++);
}

TEST(EncodedParts, DoNotChangeTheIdsOfPublishedTokenizers) {
  for (const char* name : {"llama3", "mistral", "qwen3", "stories260k"}) {
    if (!has_shared(std::string(name) + "/tokenizer.json"))
      GTEST_SKIP() << kSharedData << "/" << name << "/tokenizer.json is not there";
    expect_same_ids(kSharedData + "/" + name, 9);
  }
}

TEST(EncodedParts, HaveTheEarlierTurnsOfAConversation) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  const auto chat_template = ChatTemplate::load(kTinyTales);
  EncodedParts parts(1 << 20);
  Json messages = Json::array();
  size_t last = 0;
  for (int turn = 0; turn < 10; ++turn) {
    messages.push_back({{"role", "user"}, {"content", std::string(400, 'a' + turn)}});
    messages.push_back({{"role", "assistant"}, {"content", "Well."}});
    const Json context = {{"messages", messages}, {"add_generation_prompt", true}};
    tokenizer->encode(chat_template->prompt(context), false, {.known = &parts});
    // Only the new turn was added.
    const size_t added = parts.num_bytes() - std::exchange(last, parts.num_bytes());
    EXPECT_GT(added, 400);
    EXPECT_LT(added, 2400);
  }
}

TEST(EncodedParts, MayBeUsedByThreads) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  EncodedParts parts(20'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(t));
      for (int i = 0; i < 300; ++i) {
        const std::string text = std::string(100 + 100 * random.below(20), 'a') + " b";
        EXPECT_EQ(tokenizer->encode(text, true, {.known = &parts}), tokenizer->encode(text));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace nanovllm
