#include "nanovllm/text/tokenizer/tokenizer.h"

#include <gmock/gmock.h>

#include <iostream>
#include <map>
#include <thread>

#include "nanovllm/base/error.h"
#include "nanovllm/base/system/files.h"
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

TEST(TokenizerJson, RefusesEveryTruncation) {
  const std::string json = Fields().json();
  ASSERT_EQ(error_of(json), "no error");
  for (size_t n = 0; n < json.size(); ++n) EXPECT_NE(error_of(json.substr(0, n)), "no error") << n;
}

TEST(TokenizerJson, SurvivesEveryChangedByte) {
  const std::string json = Fields().json();
  for (size_t n = 0; n < json.size(); ++n)
    for (const char c : {'\0', '"', '\\', '{', ']', '9', '-', '\xFF'}) {
      std::string changed = json;
      changed[n] = c;
      error_of(changed);
    }
}

TEST(TokenizerJson, RefusesBadIds) {
  for (const char* id : {"-1", "2097152", "4294967296", "99999999999999999999", "1.0", "1e2",
                         "\"1\"", "null", "[]", "NaN"}) {
    Fields fields;
    fields.vocab = std::string(R"({"a": 0, "b": )") + id + "}";
    fields.merges = "[]";
    EXPECT_THAT(error_of(fields.json()), HasSubstr("id of 'b'")) << id;
    fields = Fields();
    fields.added_tokens = std::string(R"([{"content": "<s>", "id": )") + id + "}]";
    EXPECT_NE(error_of(fields.json()), "no error") << id;
  }
}

TEST(TokenizerJson, RefusesDuplicates) {
  Fields fields;
  fields.vocab = R"({"a": 0, "b": 0})";
  fields.merges = "[]";
  EXPECT_THAT(error_of(fields.json()), HasSubstr("'b' the id 0 of another token"));
  fields.vocab = R"({"a": 0, "a": 1})";
  EXPECT_THAT(error_of(fields.json()), HasSubstr("twice"));
  fields = Fields();
  fields.added_tokens = R"([{"id": 3, "content": "<s>"}])";
  EXPECT_THAT(error_of(fields.json()), HasSubstr("'<s>'"));
  fields.added_tokens = R"([{"id": 7, "content": "a"}])";
  EXPECT_THAT(error_of(fields.json()), HasSubstr("'a'"));
  fields.added_tokens = R"([{"id": 7, "content": "<s>"}, {"id": 8, "content": "<s>"}])";
  EXPECT_THAT(error_of(fields.json()), HasSubstr("two ids"));
}

TEST(TokenizerJson, RefusesWrongTypesAndBadMerges) {
  for (const char* merges : {R"(["a"])", R"(["a b c"])", R"([["a"]])", R"([["a", "b", "c"]])",
                             "[1]", "[[1, 2]]", R"(["a x"])", R"(["b a"])"}) {
    Fields fields;
    fields.merges = merges;
    EXPECT_NE(error_of(fields.json()), "no error") << merges;
  }
  for (const char* value : {"1", "\"x\"", "[]", "[1]", "{}", "true", R"({"type": 1})"}) {
    for (std::string Fields::*field :
         {&Fields::normalizer, &Fields::pre_tokenizer, &Fields::post_processor, &Fields::decoder}) {
      Fields fields;
      fields.*field = value;
      EXPECT_NE(error_of(fields.json()), "no error") << value;
    }
    Fields fields;
    fields.vocab = value;
    EXPECT_NE(error_of(fields.json()), "no error") << value;
  }
  for (const char* whole : {"", "null", "[]", "{}", "1", R"({"model": null})", R"({"model": {}})"})
    EXPECT_NE(error_of(whole), "no error") << whole;
  EXPECT_NE(error_of(std::string(200'000, '[')), "no error");
}

TEST(TokenizerJson, NamesWhatIsNotSupported) {
  const auto refuses = [](std::string Fields::*field, const char* value, const char* name) {
    Fields fields;
    fields.*field = value;
    EXPECT_THAT(error_of(fields.json()), HasSubstr(name));
  };
  refuses(&Fields::model, R"("type": "Unigram")", "'Unigram'");
  refuses(&Fields::model, R"("dropout": 0.1)", "dropout");
  refuses(&Fields::model, R"("end_of_word_suffix": "</w>")", "end_of_word_suffix");
  refuses(&Fields::model, R"("continuing_subword_prefix": 1)", "continuing_subword_prefix");
  // The ways in which files say that a component is absent.
  Fields off;
  off.model = R"("dropout": 0.0, "continuing_subword_prefix": "", "end_of_word_suffix": null)";
  EXPECT_EQ(error_of(off.json()), "no error");
  refuses(&Fields::normalizer, R"({"type": "Lowercase"})", "normalizer: 'Lowercase'");
  refuses(&Fields::pre_tokenizer, R"({"type": "Digits"})", "pre_tokenizer: 'Digits'");
  refuses(&Fields::post_processor, R"({"type": "BertProcessing"})",
          "post_processor: 'BertProcessing'");
  refuses(&Fields::decoder, R"({"type": "WordPiece"})", "decoder: 'WordPiece'");
  refuses(&Fields::decoder,
          R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]})",
          "ByteFallback");
}

TEST(TokenizerJson, NothingMayFollowTheObject) {
  EXPECT_EQ(error_of(Fields{}.json() + " \n"), "no error");
  for (const std::string& rest : {std::string("x"), std::string(1, '\0'), std::string("{}")})
    EXPECT_THAT(error_of(Fields{}.json() + rest), HasSubstr("not valid JSON: the end of the text"));
}

TEST(TokenizerConfig, AddsAndReplacesAddedTokens) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "tokenizer_config";
  std::filesystem::create_directories(folder);
  Fields fields;
  fields.added_tokens = R"([{"id": 7, "content": "<s>", "special": false}])";
  std::ofstream(folder / "tokenizer.json") << fields.json();
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"added_tokens_decoder": {"7": {"content": "<s>", "special": true}, "9": {"content": "<e>"}},
             "eos_token": {"content": "<e>"}})";
  const auto tokenizer = Tokenizer::load(folder);
  EXPECT_TRUE(tokenizer->is_special(7));
  EXPECT_THAT(tokenizer->encode("<s><e>"), ElementsAre(7, 9));
  EXPECT_EQ(tokenizer->eos_token_id(), 9);
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"added_tokens_decoder": {"x": {"content": "<s>"}}})";
  EXPECT_THROW(Tokenizer::load(folder), UserError);
}

TEST(TokenizerConfig, MissingFolder) {
  EXPECT_THROW(Tokenizer::load("/no/such/folder"), UserError);
}

}  // namespace
}  // namespace nanovllm
