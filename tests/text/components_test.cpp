#include <gmock/gmock.h>

#include <map>

#include "nanovllm/text/pre_tokenizer/normalizer.h"
#include "nanovllm/text/pre_tokenizer/pre_tokenizer.h"
#include "nanovllm/text/tokenizer/detokenizer.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "nanovllm/text/tokenizer_json.h"
#include "tests/text/tokenizer_files.h"

// What the Python package `tokenizers` makes of texts with each component;
// fixtures/make_components.py made the file.
namespace nanovllm {
namespace {

using Ids = std::vector<int32_t>;

const std::vector<Json>& rows() {
  static const std::vector<Json> rows = read_json_lines(kFixtures + "/components.jsonl");
  return rows;
}

// Calls compare(setting, what, what it becomes) for each example of a kind.
template <class Compare>
void for_each_example(const char* kind, size_t least_settings, Compare&& compare) {
  size_t num_settings = 0;
  for (const Json& row : rows()) {
    if (!row.contains(kind)) continue;
    ++num_settings;
    for (size_t i = 0; i < row["of"].size(); ++i)
      compare(row[kind], row["of"][i], row["become"][i]);
  }
  EXPECT_GE(num_settings, least_settings) << kind;
}

TEST(Components, NormalizersAgree) {
  for_each_example("normalizer", 50, [](const Json& setting, const Json& of, const Json& becomes) {
    const std::string file = Json{{"normalizer", setting}}.dump();
    const auto text = of.get<std::string>();
    std::string storage;
    WorkBudget budget(text.size());
    EXPECT_EQ(Normalizer(read_tokenizer_json(file, "t")).normalize(text, storage, budget).text,
              becomes.get<std::string>())
        << setting << of;
  });
}

TEST(Components, PreTokenizersAgree) {
  for_each_example(
      "pre_tokenizer", 200, [](const Json& setting, const Json& of, const Json& becomes) {
        // With byte_fallback, pieces are spelled in the byte-level alphabet.
        const std::string file =
            Json{{"pre_tokenizer", setting}, {"model", {{"byte_fallback", true}}}}.dump();
        std::vector<std::string> pieces;
        PreTokenizer(read_tokenizer_json(file, "t"))
            .split(of.get<std::string>(), /*at_start=*/true,
                   [&](std::string_view piece) { pieces.emplace_back(piece); });
        EXPECT_EQ(pieces, becomes.get<std::vector<std::string>>()) << setting << of;
      });
}

TEST(Components, OptionsOfModelsAgree) {
  const Json& vocab = rows()[0]["model_vocab"];
  for_each_example("model", 30, [&](const Json& setting, const Json& of, const Json& becomes) {
    Json file = setting;
    file["model"]["vocab"] = vocab;
    file["decoder"] = {{"type", "Fuse"}};
    EXPECT_EQ(Tokenizer::parse(file.dump(), "t")->encode(of.get<std::string>()), becomes.get<Ids>())
        << setting << of;
  });
}

TEST(Components, DecodersAgree) {
  Json vocab;
  for (const Json& token : rows()[0]["decoded_vocab"])
    vocab[token.get<std::string>()] = vocab.size();
  for_each_example("decoder", 80, [&](const Json& setting, const Json& of, const Json& becomes) {
    const Json file = {{"decoder", setting}, {"model", {{"vocab", vocab}, {"merges", {}}}}};
    const auto tokenizer = Tokenizer::parse(file.dump(), "t");
    EXPECT_EQ(tokenizer->decode(of.get<Ids>()), becomes.get<std::string>()) << setting << of;
  });
}

std::string after_each_token(const Tokenizer& tokenizer, const Ids& ids) {
  Detokenizer detokenizer(tokenizer, /*skip_special_tokens=*/true);
  std::string pieces;
  for (const int32_t id : ids) pieces += detokenizer.push(id) + "/";
  return pieces + detokenizer.finish();
}

// The text goes on with each token, even if all tokens become one first.
TEST(Components, DecodersHoldBackOnlyWhatTheyMust) {
  Fields fields;
  fields.vocab = R"({"▁a": 0, "b": 1, "<0xC3>": 2, "<0xA9>": 3, "##c": 4, "d</w>": 5})";
  fields.merges = "[]";
  fields.pre_tokenizer = "null";
  const auto pieces = [&](const std::string& decoders, const Ids& ids) {
    fields.decoder = R"({"type": "Sequence", "decoders": [)" + decoders + "]}";
    return after_each_token(*fields.parse(), ids);
  };
  const std::string bytes = R"({"type": "ByteFallback"}, {"type": "Fuse"})";
  EXPECT_EQ(pieces(bytes, {0, 1, 2, 3, 0}), "▁a/b///é▁a/");
  const std::string space = R"({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})";
  EXPECT_EQ(pieces(bytes + ", " + space, {0, 1, 2, 3, 0}), " a/b///é a/");
  const std::string strip = R"({"type": "Strip", "content": " ", "start": 1, "stop": )";
  EXPECT_EQ(pieces(bytes + ", " + space + ", " + strip + "0}", {0, 1, 0}), "a/b/ a/");
  EXPECT_EQ(pieces(bytes + ", " + space + ", " + strip + "1}", {0, 1, 0}), "///ab a");
  EXPECT_EQ(pieces(R"({"type": "WordPiece", "prefix": "##", "cleanup": true})", {1, 4, 1}),
            "b/c/ b/");
  EXPECT_EQ(pieces(R"({"type": "BPEDecoder", "suffix": "</w>"})", {5, 1, 5}), "/d /b/d");
  fields.decoder = "null";
  EXPECT_EQ(after_each_token(*fields.parse(), {1, 1, 4}), "b/ b/ ##c/");
}

TEST(Components, ATextThatContinuesKeepsTheFirstSpace) {
  Fields fields;
  fields.vocab = R"({"▁a": 0, "b": 1})";
  fields.merges = "[]";
  fields.pre_tokenizer = "null";
  const auto continued = [&](const std::string& decoder) {
    fields.decoder = decoder;
    const auto tokenizer = fields.parse();
    Detokenizer detokenizer(*tokenizer, true);
    detokenizer.continue_text();
    return detokenizer.push(0) + detokenizer.push(1) + detokenizer.finish();
  };
  EXPECT_EQ(continued("null"), " ▁a b");
  EXPECT_EQ(continued(R"({"type": "WordPiece", "prefix": "##", "cleanup": true})"), " ▁a b");
  EXPECT_EQ(continued(R"({"type": "Metaspace", "replacement": "▁"})"), " ab");
  const std::string strip = R"({"type": "Strip", "content": "▁", "start": 1, "stop": 0}]})";
  EXPECT_EQ(continued(R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, )" + strip), "▁ab");
  EXPECT_EQ(continued(R"({"type": "Sequence", "decoders": [)" + strip), "ab");
}

TEST(Components, PostProcessorsOfBertAndRoberta) {
  for (const char* type : {"BertProcessing", "RobertaProcessing"}) {
    Fields fields;
    fields.post_processor = std::string(R"({"type": ")") + type +
                            R"(", "sep": ["c", 2], "cls": ["b", 1], "trim_offsets": true})";
    EXPECT_THAT(fields.parse()->encode("a"), ::testing::ElementsAre(1, 0, 2)) << type;
    EXPECT_THAT(fields.parse()->encode("a", false), ::testing::ElementsAre(0)) << type;
  }
}

}  // namespace
}  // namespace nanovllm
