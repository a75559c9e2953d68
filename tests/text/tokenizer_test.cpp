#include "nanovllm/text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>

#include <iostream>
#include <map>
#include <thread>

#include "nanovllm/base/error.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/text/pre_tokenizer/pre_tokenizer.h"
#include "nanovllm/text/tokenizer_json.h"
#include "tests/text/tokenizer_files.h"

namespace nanovllm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;

const Tokenizer& tiny_tales() {
  static const auto tokenizer = Tokenizer::load(kTinyTales);
  return *tokenizer;
}

TEST(Tokenizer, EncodesTheGoldensPrompts) {
  int prompts = 0;
  for (const Json& row :
       read_json_lines(std::string(NANOVLLM_SOURCE_DIR) + "/tests/goldens/tiny-tales.jsonl")) {
    if (!row.contains("prompt")) continue;
    ++prompts;
    EXPECT_EQ(tiny_tales().encode(row["prompt"].get<std::string>()),
              row["prompt_token_ids"].get<Ids>())
        << row["id"];
  }
  EXPECT_GT(prompts, 10);
}

TEST(Tokenizer, DecodesTheGoldensAnswers) {
  for (const Json& row :
       read_json_lines(std::string(NANOVLLM_SOURCE_DIR) + "/tests/goldens/tiny-tales.jsonl"))
    EXPECT_EQ(tiny_tales().decode(row["greedy_token_ids"].get<Ids>()),
              row["text"].get<std::string>())
        << row["id"];
}

// Tokenizers in the forms of GPT-2, Llama 2, Llama 3, Mistral and older Metaspace tokenizers.
TEST(Tokenizer, AgreesWithTheEncodingsOfTheFixtures) {
  std::map<std::string, std::unique_ptr<const Tokenizer>> tokenizers;
  for (const Json& row : read_json_lines(kFixtures + "/encodings.jsonl")) {
    const auto name = row["tokenizer"].get<std::string>(), text = row["text"].get<std::string>();
    auto& tokenizer = tokenizers[name];
    if (tokenizer == nullptr) tokenizer = Tokenizer::load(kFixtures + "/" + name);
    EXPECT_EQ(tokenizer->encode(text, false), row["ids"].get<Ids>()) << name << ": " << text;
    EXPECT_EQ(tokenizer->encode(text), row["ids_special"].get<Ids>()) << name << ": " << text;
    EXPECT_EQ(tokenizer->decode(row["ids"].get<Ids>(), false), row["decode"].get<std::string>())
        << name << ": " << text;
  }
  EXPECT_EQ(tokenizers.size(), 5);
}

// fixtures/make_settings.py made settings.jsonl: settings that few published tokenizers have.
std::vector<Json> settings_with(const std::string& key) {
  std::vector<Json> rows = read_json_lines(kFixtures + "/settings.jsonl");
  std::erase_if(rows, [&](const Json& row) { return !row.contains(key); });
  EXPECT_GT(rows.size(), 90);
  return rows;
}

TEST(Tokenizer, CutsPiecesByEverySetting) {
  for (const Json& row : settings_with("pre_tokenizer")) {
    const std::string file = Json{{"pre_tokenizer", row["pre_tokenizer"]}}.dump();
    std::vector<std::string> pieces;
    PreTokenizer(read_tokenizer_json(file, "t"))
        .split(row["text"].get<std::string>(), /*at_start=*/true,
               [&](std::string_view piece) { pieces.emplace_back(piece); });
    EXPECT_EQ(pieces, row["pieces"].get<std::vector<std::string>>()) << row;
  }
}

TEST(Tokenizer, AgreesWithRareSettings) {
  for (const Json& row : settings_with("tokenizer")) {
    const auto tokenizer = Tokenizer::parse(row["tokenizer"].dump(), "t");
    const auto ids = row["ids"].get<Ids>();
    EXPECT_EQ(tokenizer->encode(row["text"].get<std::string>(), false), ids) << row;
    EXPECT_EQ(tokenizer->decode(ids, false), row["decode"].get<std::string>()) << row;
  }
}

TEST(Tokenizer, AgreesWithPublishedVectors) {
  if (!has_shared("conformance/tokenizer_vectors.jsonl"))
    GTEST_SKIP() << kSharedData << "/conformance/tokenizer_vectors.jsonl is not here";
  std::map<std::string, std::unique_ptr<const Tokenizer>> tokenizers;
  int rows = 0;
  for (const Json& row : read_json_lines(kSharedData + "/conformance/tokenizer_vectors.jsonl")) {
    const auto name = row["tokenizer"].get<std::string>();
    if (!has_shared(name + "/tokenizer.json")) continue;
    auto& tokenizer = tokenizers[name];
    if (tokenizer == nullptr) tokenizer = Tokenizer::load(kSharedData + "/" + name);
    EXPECT_EQ(tokenizer->encode(row["text"].get<std::string>(), false), row["ids"].get<Ids>())
        << row["source"] << " " << row["text"];
    ++rows;
  }
  EXPECT_EQ(rows, 286);
}

TEST(Tokenizer, AgreesWithMistralsPublishedEncodings) {
  if (!has_shared("mistral/encodings.json"))
    GTEST_SKIP() << kSharedData << "/mistral/encodings.json is not here";
  const auto tokenizer = Tokenizer::load(kSharedData + "/mistral");
  const Json json = parse_json(
      read_file(kSharedData + "/mistral/encodings.json", kMaxTokenizerBytes), "encodings.json");
  for (const Json& entry : json["entries"]) {
    const auto text = entry["text"].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text, false), entry["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer->encode(text), entry["ids_special"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer->decode(entry["ids"].get<Ids>(), false), entry["decode"].get<std::string>())
        << text;
  }
}

TEST(Tokenizer, AddsWhatThePostProcessorAdds) {
  Fields fields;
  fields.added_tokens =
      R"([{"id": 7, "content": "<s>", "special": true}, {"id": 8, "content": "</s>", "special": true}])";
  fields.post_processor =
      R"({"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "</s>", "type_id": 0}}],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [7]}, "</s>": {"id": "</s>", "ids": [8]}}}]})";
  const auto tokenizer = fields.parse();
  EXPECT_THAT(tokenizer->encode("abc"), ElementsAre(7, 4, 8));
  EXPECT_THAT(tokenizer->encode(""), ElementsAre(7, 8));
  EXPECT_THAT(tokenizer->encode("abc", false), ElementsAre(4));
  EXPECT_EQ(tokenizer->decode(Ids{7, 4, 8}), "abc");
  EXPECT_EQ(tokenizer->decode(Ids{7, 4, 8}, false), "<s>abc</s>");
}

TEST(Tokenizer, ParsesSpecialTokensWrittenInAText) {
  const int32_t start = *tiny_tales().token_to_id("<|im_start|>");
  const int32_t end = *tiny_tales().token_to_id("<|im_end|>");
  const Ids ids = tiny_tales().encode("<|im_start|>a<|im_end|><|im_en");
  EXPECT_EQ(ids.front(), start);
  EXPECT_EQ(ids[2], end);
  EXPECT_TRUE(tiny_tales().is_special(start));
  EXPECT_FALSE(tiny_tales().is_special(0));
  EXPECT_FALSE(tiny_tales().is_special(*tiny_tales().token_to_id("<think>")));
  EXPECT_EQ(tiny_tales().decode(ids), "a<|im_en");
  EXPECT_EQ(tiny_tales().decode(ids, false), "<|im_start|>a<|im_end|><|im_en");
}

TEST(Tokenizer, KnowsItsVocabulary) {
  EXPECT_EQ(tiny_tales().vocab_size(), 8192);
  EXPECT_EQ(tiny_tales().token_to_id("!"), 0);
  EXPECT_EQ(tiny_tales().token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tiny_tales().eos_token_id(), tiny_tales().token_to_id("<|im_end|>"));
  EXPECT_FALSE(tiny_tales().is_special(-1));
  EXPECT_FALSE(tiny_tales().is_special(1 << 30));
}

TEST(Tokenizer, HonoursTheFlagsOfAddedTokens) {
  Fields fields;
  fields.added_tokens = R"([
      {"id": 10, "content": "<l>", "lstrip": true, "normalized": false},
      {"id": 11, "content": "<r>", "rstrip": true, "normalized": false},
      {"id": 12, "content": "ca", "single_word": true, "normalized": false},
      {"id": 13, "content": "<r><r>", "normalized": false}])";
  const auto tokenizer = fields.parse();
  EXPECT_THAT(tokenizer->encode("a \t<l> a"), ElementsAre(0, 10, 6));
  EXPECT_THAT(tokenizer->encode("a <r> \u3000a"), ElementsAre(0, 5, 11, 0));
  EXPECT_THAT(tokenizer->encode("ca a"), ElementsAre(12, 6));
  EXPECT_THAT(tokenizer->encode("aca cab"), ElementsAre(0, 2, 0, 5, 2, 3)) << "within words";
  EXPECT_THAT(tokenizer->encode("<r><r><r>"), ElementsAre(13, 11)) << "the longest first";
}

TEST(Tokenizer, LooksForNormalizedTokensInTheNormalizedText) {
  Fields fields;
  fields.normalizer =
      R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "b"}, "content": "c"}]})";
  fields.added_tokens =
      R"([{"id": 10, "content": "xb", "normalized": true}, {"id": 11, "content": "yb", "normalized": false}])";
  const auto tokenizer = fields.parse();
  EXPECT_THAT(tokenizer->encode("xbxcybyca"), ElementsAre(10, 10, 11, 2, 0));
}

TEST(Tokenizer, ReadsBothFormatsOfMerges) {
  Fields fields;
  fields.merges = R"([["a", "b"], ["ab", "c"], ["\u0120", "a"]])";
  EXPECT_THAT(fields.parse()->encode("abc a"), ElementsAre(4, 6));
}

TEST(Tokenizer, MergesByRankNotByVocabulary) {
  Fields fields;
  fields.merges = R"(["b c", "a b", "ab c"])";
  fields.vocab = R"({"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "bc": 5})";
  EXPECT_THAT(fields.parse()->encode("abc"), ElementsAre(0, 5))
      << "abc is a token that no merge produces";
  EXPECT_THAT(fields.parse()->encode(std::string(60, 'a') + "abc").size(), 62);
  fields.model += R"(, "ignore_merges": true)";
  EXPECT_THAT(fields.parse()->encode("abc"), ElementsAre(4));
}

TEST(Tokenizer, FallsBackToBytesThenToUnk) {
  Fields fields;
  fields.pre_tokenizer = "null";
  fields.decoder =
      R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]})";
  fields.vocab = R"({"a": 0, "<0xC3>": 1, "<0xA9>": 2, "<unk>": 3})";
  fields.merges = "[]";
  fields.model = R"("type": "BPE", "byte_fallback": true, "unk_token": "<unk>", "fuse_unk": true)";
  EXPECT_THAT(fields.parse()->encode("aéüua"), ElementsAre(0, 1, 2, 3, 0));
  fields.model = R"("type": "BPE", "byte_fallback": true, "unk_token": "<unk>")";
  EXPECT_THAT(fields.parse()->encode("aéüua"), ElementsAre(0, 1, 2, 3, 3, 0));
  fields.model = R"("type": "BPE")";
  EXPECT_THAT(fields.parse()->encode("aéüua"), ElementsAre(0, 0));
}

TEST(Tokenizer, IllFormedUtf8BecomesReplacementCharacters) {
  const auto same = [](std::string_view bad, std::string_view good) {
    EXPECT_EQ(tiny_tales().encode(bad), tiny_tales().encode(good));
  };
  same("a\xFFz", "a\uFFFDz");
  same("\xC0\xAF", "\uFFFD\uFFFD");                      // overlong
  same("\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD");            // a surrogate
  same("\xF0\x9F\x98", "\uFFFD");                        // cut off
  same("\xF0\x9F\x98z\xE2\x82", "\uFFFDz\uFFFD");        // maximal subparts
  same("\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD");  // past U+10FFFF
}

// Control characters, the same letter 5,000 times, and a megabyte in one piece, for which quadratic
// time would be minutes.
TEST(Tokenizer, OddAndLongTextsRoundTrip) {
  std::vector<std::string> texts = {std::string("\0\x01\x1f\x7f", 4), std::string(5000, 'a'),
                                    std::string(1 << 20, 'a'),        std::string(1 << 20, ' '),
                                    std::string(1 << 20, '\n'),       std::string(1 << 20, '<')};
  std::string marks = "q", words;
  while (marks.size() < 1 << 20) marks += "\u0327\u0301";
  while (words.size() < 1 << 20) words += "so it is, \u4f60\u597d! 123\r\n";
  texts.push_back(words);
  for (const std::string& text : texts)
    EXPECT_EQ(tiny_tales().decode(tiny_tales().encode(text)), text);
  EXPECT_EQ(tiny_tales().decode(tiny_tales().encode(marks)).size(), marks.size())
      << "in another order";
}

TEST(Tokenizer, LongTextsWithoutAPreTokenizer) {
  std::string text;
  while (text.size() < 1 << 20) text += "so it is   and\u4f60\u597d\U0001F600 ";
  for (const std::string& folder :
       {kFixtures + "/mistral", kFixtures + "/llama2", kSharedData + "/mistral"}) {
    if (!std::filesystem::exists(folder)) {
      std::cout << "skipped: no " << folder << "\n";
      continue;
    }
    const auto tokenizer = Tokenizer::load(folder);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << folder;
  }
}

TEST(Tokenizer, ManyThreadsMayEncode) {
  const auto tokenizer = Tokenizer::load(kTinyTales);
  const std::string text = "Once upon a time there was a little girl, \u00e9\u4f60 123.";
  const Ids expected = tiny_tales().encode(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 200; ++n) EXPECT_EQ(tokenizer->encode(text), expected);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace nanovllm
