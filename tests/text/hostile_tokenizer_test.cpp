#include <gmock/gmock.h>

#include "nanovllm/base/error.h"
#include "tests/text/tokenizer_files.h"

// Files of a few kilobytes that would take minutes or gigabytes without limits.
namespace nanovllm {
namespace {

using ::testing::HasSubstr;

std::string repeat(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(TokenizerJson, WhatThePostProcessorAddsIsBounded) {
  const auto file = [](size_t num_parts, size_t num_ids) {
    Fields fields;
    fields.post_processor =
        R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}})" +
        repeat(R"(, {"SpecialToken": {"id": "x"}})", num_parts) +
        R"(], "special_tokens": {"x": {"ids": [)" + repeat("0, ", num_ids - 1) + "0]}}}";
    return fields;
  };
  EXPECT_EQ(file(10, 100).parse()->encode("a").size(), 1001);
  EXPECT_THAT(error_of(file(10, 101).json()), HasSubstr("more than 1000 ids"));
  EXPECT_THAT(error_of(file(14'000, 14'000).json()), HasSubstr("more than 1000 parts"));
}

TEST(TokenizerJson, StagesOfThePreTokenizerAreBounded) {
  const std::string split =
      R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"})";
  const auto file = [&](size_t count) {
    Fields fields;
    fields.pre_tokenizer = R"({"type": "Sequence", "pretokenizers": [)" + split +
                           repeat(", " + split, count - 1) + "]}";
    fields.vocab = R"({"a": 0})";
    fields.merges = "[]";
    return fields.json();
  };
  EXPECT_EQ(error_of(file(16)), "no error");
  EXPECT_THAT(error_of(file(17)), HasSubstr("more than 16 stages"));
}

// All parts between added tokens share one budget.
TEST(Tokenizer, WorkIsBoundedForATextAsAWhole) {
  Fields fields;
  fields.added_tokens = R"([{"id": 7, "content": "<s>", "normalized": false}])";
  fields.normalizer = R"({"type": "Prepend", "prepend": ")" + std::string(1000, 'a') + "\"}";
  const auto tokenizer = fields.parse();
  EXPECT_EQ(tokenizer->encode("b").size(), 1000);
  EXPECT_EQ(tokenizer->encode(std::string(1000, 'b')).size(), 1999);
  EXPECT_THROW(tokenizer->encode(repeat("b<s>", 100'000)), UserError);
  // A text that grows and shrinks in turn takes equally long.
  fields.normalizer = R"({"type": "Sequence", "normalizers": [)" + fields.normalizer +
                      R"(, {"type": "Replace", "pattern": {"String": "a"}, "content": ""}]})";
  EXPECT_THROW(fields.parse()->encode(repeat("b<s>", 100'000)), UserError);
}

// Each component doubles the text.
TEST(Tokenizer, GrowthIsBoundedInThePreTokenizerAndTheDecoder) {
  const auto list = [](const char* key, const std::string& component, size_t count = 15) {
    return std::string(R"({"type": "Sequence", ")") + key + R"(": [)" + component +
           repeat(", " + component, count - 1) + "]}";
  };
  Fields fields;
  fields.vocab = R"({"a": 0})";
  fields.merges = "[]";
  fields.pre_tokenizer = list(
      "pretokenizers", R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})");
  EXPECT_NO_THROW(fields.parse()->encode("aaa"));
  EXPECT_THROW(fields.parse()->encode(repeat("\u4f60", 100'000)), UserError);
  fields.pre_tokenizer = list("pretokenizers", R"({"type": "Metaspace", "replacement": "_"})", 8);
  EXPECT_NO_THROW(fields.parse()->encode("aaa"));
  fields.pre_tokenizer = "null";
  fields.decoder =
      R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, )" +
      list("decoders", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": "aa"})") + "]}";
  const auto tokenizer = fields.parse();
  EXPECT_LT(tokenizer->decode(std::vector<int32_t>(100'000, 0)).size(), 3'200'000);
}

TEST(TokenizerJson, WorkOnTheVocabularyIsBounded) {
  Fields fields;
  fields.decoder = R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String":
      "a"}, "content": ")" +
                   std::string(1000, 'x') + "\"}]}";
  fields.pre_tokenizer = "null";
  fields.merges = "[]";
  fields.vocab = R"({"a": 0)";
  for (int i = 1; i < 80'000; ++i)
    fields.vocab += ", \"a" + std::to_string(i) + "\": " + std::to_string(i);
  fields.vocab += "}";
  EXPECT_THROW(fields.parse(), UserError);
}

// At each position of the text, all bytes of the literal match except the last one.
TEST(Tokenizer, LiteralsThatAlmostMatchEverywhere) {
  const std::string as(1 << 20, 'a'), literal = as + "b";
  Fields fields;
  fields.normalizer =
      R"({"type": "Replace", "pattern": {"String": ")" + literal + R"("}, "content": "c"})";
  EXPECT_EQ(fields.parse()->encode(as + as).size(), 2 << 20);
  fields.normalizer = "null";
  fields.vocab = R"({"a": 0})";
  fields.merges = "[]";
  fields.pre_tokenizer =
      R"({"type": "Split", "pattern": {"String": ")" + literal + R"("}, "behavior": "Isolated"})";
  EXPECT_EQ(fields.parse()->encode(as + as).size(), 2 << 20);
  fields.pre_tokenizer = "null";
  fields.added_tokens = R"([{"id": 7, "content": ")" + literal + "\"}]";
  EXPECT_EQ(fields.parse()->encode(as + as).size(), 2 << 20);
}

TEST(TokenizerJson, FieldsOfAnObjectAreBounded) {
  // Fields::json() has 5 fields besides the model, and the model 1 besides its vocabulary and
  // merges.
  const auto file = [](int num_fields, int num_model_fields) {
    Fields fields;
    for (int i = 1; i < num_model_fields; ++i)
      fields.model += ", \"x" + std::to_string(i) + "\": 0";
    std::string json = fields.json();
    for (int i = 5; i < num_fields; ++i) json.insert(1, "\"x" + std::to_string(i) + "\": 0, ");
    return json;
  };
  EXPECT_EQ(error_of(file(1000, 1000)), "no error");
  EXPECT_THAT(error_of(file(1001, 1)), HasSubstr("an object with more than 1000 keys"));
  EXPECT_THAT(error_of(file(6, 1001)), HasSubstr("an object with more than 1000 keys"));
}

TEST(TokenizerJson, ComponentsAreBoundedAlsoInNestedSequences) {
  const std::string nfc = R"({"type": "NFC"})";
  const std::string bytes =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  const auto flat = [](const std::string& component, const std::string& list_key, int count) {
    std::string list = component;
    for (int n = 1; n < count; ++n) list += ", " + component;
    return R"({"type": "Sequence", ")" + list_key + "\": [" + list + "]}";
  };
  EXPECT_EQ(error_of(Fields{.normalizer = flat(nfc, "normalizers", 100)}.json()), "no error");
  for (const std::string& json :
       {Fields{.normalizer = flat(nfc, "normalizers", 101)}.json(),
        Fields{.normalizer = R"({"type": "Sequence", "normalizers": [)" +
                             flat(nfc, "normalizers", 60) + ", " + flat(nfc, "normalizers", 41) +
                             "]}"}
            .json(),
        Fields{.pre_tokenizer = flat(bytes, "pretokenizers", 101)}.json(),
        Fields{.post_processor = flat(bytes, "processors", 101)}.json(),
        Fields{.decoder = flat(R"({"type": "Fuse"})", "decoders", 101)}.json()})
    EXPECT_THAT(error_of(json), HasSubstr("more than 100 components"));
}

}  // namespace
}  // namespace nanovllm
