#include "nanovllm/text/tokenizer/detokenizer.h"

#include <gmock/gmock.h>

#include "nanovllm/base/strings/utf8.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;

// Returns the joined pieces, each of which must be well-formed UTF-8.
std::string streamed(const Tokenizer& tokenizer, const Ids& ids, bool skip_special_tokens) {
  Detokenizer detokenizer(tokenizer, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_TRUE(is_utf8(piece));
    text += piece;
  }
  return text + detokenizer.finish();
}

TEST(Detokenizer, PiecesJoinedAreTheGoldensTexts) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  for (const Json& row :
       read_json_lines(std::string(NANOVLLM_SOURCE_DIR) + "/tests/goldens/tiny-tales.jsonl"))
    EXPECT_EQ(streamed(*tokenizer, row["greedy_token_ids"].get<Ids>(), true),
              row["text"].get<std::string>());
}

TEST(Detokenizer, NeverCutsACharacter) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  // A family of three, joined: 18 bytes that tiny-tales spells byte by byte.
  const std::string text = "\U0001F468\u200D\U0001F469\u200D\U0001F467 \u00e9";
  Detokenizer detokenizer(*tokenizer, true);
  std::string so_far;
  for (const int32_t id : tokenizer->encode(text)) {
    so_far += detokenizer.push(id);
    EXPECT_TRUE(text.starts_with(so_far)) << so_far;
  }
  EXPECT_EQ(so_far, text);
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, FinishReplacesIncompleteCharacters) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  Ids ids = tokenizer->encode("a\U0001F468");
  ids.pop_back();
  Detokenizer detokenizer(*tokenizer, true);
  std::string so_far;
  for (const int32_t id : ids) so_far += detokenizer.push(id);
  EXPECT_EQ(so_far, "a");
  EXPECT_EQ(detokenizer.finish(), kReplacementCharacter);
}

TEST(Detokenizer, LeavesOutSpecialAndUnknownIds) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  const Ids ids = {*tokenizer->token_to_id("<|im_start|>"), -1, 1 << 30, 0,
                   *tokenizer->token_to_id("<|im_end|>")};
  EXPECT_EQ(streamed(*tokenizer, ids, true), "!");
  EXPECT_EQ(streamed(*tokenizer, ids, false), "<|im_start|>!<|im_end|>");
}

TEST(Detokenizer, StripsTheFirstSpaceOfSentencePieceOnce) {
  const char* const json = R"({"decoder": {"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "model": {"vocab": {"▁": 0, "▁a": 1, "b": 2, "<0xC3>": 3, "<0xA9>": 4, "<0x20>": 5}, "merges": []}})";
  const auto tokenizer = Tokenizer::parse(json, "t.json");
  EXPECT_EQ(tokenizer->decode(Ids{1, 1}), "a a");
  EXPECT_EQ(tokenizer->decode(Ids{0, 1}), " a");
  EXPECT_EQ(tokenizer->decode(Ids{2, 1}), "b a");
  EXPECT_EQ(tokenizer->decode(Ids{5, 2}), "b");
  EXPECT_EQ(tokenizer->decode(Ids{2, 3, 4}), "bé");
  // If a run of byte tokens is not valid UTF-8, each byte is replaced, even those of valid
  // characters.
  EXPECT_EQ(tokenizer->decode(Ids{3, 4, 3, 2}), "\uFFFD\uFFFD\uFFFDb");
  Detokenizer detokenizer(*tokenizer, true);
  EXPECT_EQ(detokenizer.push(3), "");
  EXPECT_EQ(detokenizer.push(4), "");
  EXPECT_EQ(detokenizer.pending(), "é");
  EXPECT_EQ(detokenizer.push(2), "éb");
  Detokenizer answer(*tokenizer, true);
  answer.continue_text();
  EXPECT_EQ(answer.push(1) + answer.push(1), " a a");
}

TEST(Detokenizer, MetaspaceDropsTheFirstTokensSpaces) {
  const char* const json =
      R"({"decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"},
      "model": {"vocab": {"▁": 0, "▁a": 1, "b": 2}, "merges": []}})";
  const auto tokenizer = Tokenizer::parse(json, "t.json");
  EXPECT_EQ(tokenizer->decode(Ids{1, 1, 2}), "a ab");
  EXPECT_EQ(tokenizer->decode(Ids{0, 1}), " a");
  Detokenizer answer(*tokenizer, true);
  answer.continue_text();
  EXPECT_EQ(answer.push(1) + answer.push(2), " ab");
}

class DetokenizerOnRandomIds : public ::testing::TestWithParam<std::string> {};

TEST_P(DetokenizerOnRandomIds, JoinedPiecesAreTheWholeText) {
  const std::string folder = GetParam();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder;
  const auto tokenizer = Tokenizer::load(folder);
  Random random(1);
  for (int round = 0; round < 2000; ++round) {
    Ids ids(random.below(12));
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random.below(static_cast<size_t>(tokenizer->vocab_size()) + 2)) - 1;
    // The first ids of every vocabulary are bytes, so these rounds have more incomplete characters.
    if (round % 2 == 0)
      for (int32_t& id : ids) id %= 260;
    for (const bool skip : {true, false})
      EXPECT_EQ(streamed(*tokenizer, ids, skip), tokenizer->decode(ids, skip));
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, DetokenizerOnRandomIds,
                         ::testing::Values(kTinyTales, kFixtures + "/gpt2", kFixtures + "/llama2",
                                           kFixtures + "/llama3", kFixtures + "/metaspace",
                                           kFixtures + "/mistral", kSharedData + "/qwen3",
                                           kSharedData + "/llama3", kSharedData + "/mistral",
                                           kSharedData + "/stories260k"));

TEST(Detokenizer, ShowsSingleSpecialTokens) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  const int32_t start = *tokenizer->token_to_id("<|im_start|>");
  const int32_t end = *tokenizer->token_to_id("<|im_end|>");
  Detokenizer detokenizer(*tokenizer, /*skip_special_tokens=*/true);
  detokenizer.show({start});
  EXPECT_EQ(detokenizer.push(start) + detokenizer.push(end), "<|im_start|>");
}

}  // namespace
}  // namespace nanovllm
