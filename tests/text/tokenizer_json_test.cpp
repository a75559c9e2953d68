#include <gmock/gmock.h>
#include <unistd.h>

#include "nanovllm/base/error.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "tests/text/tokenizer_files.h"

// What tokenizer.json and tokenizer_config.json may hold, and what we say of files that are wrong.
namespace nanovllm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

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
  refuses(&Fields::model, R"("end_of_word_suffix": "a long text in place of </w>")",
          "end_of_word_suffix has more than 16 bytes");
  refuses(&Fields::model, R"("continuing_subword_prefix": 1)", "continuing_subword_prefix");
  // As files write that they have none.
  Fields off;
  off.model = R"("dropout": 0.0, "continuing_subword_prefix": "", "end_of_word_suffix": null)";
  EXPECT_EQ(error_of(off.json()), "no error");
  refuses(&Fields::model, R"("type": "WordPiece")", "'WordPiece'");
  refuses(&Fields::normalizer, R"({"type": "Precompiled"})", "normalizer: 'Precompiled'");
  refuses(&Fields::pre_tokenizer, R"({"type": "UnicodeScripts"})",
          "pre_tokenizer: 'UnicodeScripts'");
  refuses(&Fields::post_processor, R"({"type": "Other"})", "post_processor: 'Other'");
  refuses(&Fields::decoder, R"({"type": "Other"})", "decoder: 'Other'");
}

TEST(TokenizerJson, SaysWhatIsWrongWithASetting) {
  struct Case {
    std::string Fields::*field;
    const char* value;
    const char* error;
  };
  const Case cases[] = {
      {&Fields::added_tokens, "{}", "added_tokens: must be a list"},
      {&Fields::added_tokens, R"([{"id": 7}])", "added_tokens: 'content' is missing"},
      {&Fields::added_tokens, R"([{"id": 7, "content": "x", "lstrip": 1}])",
       "added_tokens: 'lstrip' must be true or false"},
      {&Fields::model, R"("unk_token": "<unk>")", "no error"},
      {&Fields::model, R"("unk_token": 5)", "model: 'unk_token' must be a string"},
      {&Fields::model, R"("fuse_unk": null)", "no error"},
      {&Fields::normalizer, R"({"type": "Replace", "pattern": {"Glob": "a"}, "content": "x"})",
       "normalizer: Replace: pattern: 'String' is missing"},
      {&Fields::normalizer, R"({"type": "Replace", "pattern": {"Regex": "("}, "content": "x"})",
       "normalizer: Replace: bad pattern '(': no ) for the ( at byte 0"},
      {&Fields::pre_tokenizer, R"({"type": "Metaspace", "replacement": "ab"})",
       "pre_tokenizer: Metaspace: the replacement must be one character"},
      {&Fields::pre_tokenizer, R"({"type": "Metaspace", "replacement": ""})",
       "pre_tokenizer: Metaspace: the replacement must be one character"},
      {&Fields::pre_tokenizer,
       R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})",
       "pre_tokenizer: Metaspace: prepend_scheme 'last' is not supported"},
      {&Fields::pre_tokenizer, R"({"type": "Sequence", "pretokenizers": {}})",
       "pre_tokenizer: 'pretokenizers' must be a list"},
      {&Fields::pre_tokenizer,
       R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Merged"})",
       "pre_tokenizer: Split: behavior 'Merged' is not supported"},
      {&Fields::pre_tokenizer, R"({"type": "CharDelimiterSplit", "delimiter": "ab"})",
       "pre_tokenizer: CharDelimiterSplit: the delimiter must be one character"},
      {&Fields::pre_tokenizer, R"({"type": "FixedLength", "length": 0})",
       "pre_tokenizer: FixedLength: the length must be a positive integer"},
      {&Fields::post_processor, R"({"type": "BertProcessing", "sep": ["b", 1], "cls": "a"})",
       "post_processor: BertProcessing: 'cls' must be a token and its id"},
      {&Fields::post_processor,
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}]})",
       "post_processor: TemplateProcessing: 'single' must contain the sequence A once"},
      {&Fields::post_processor,
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]})",
       "post_processor: TemplateProcessing: 'single' must contain the sequence A once"},
      {&Fields::post_processor, R"({"type": "TemplateProcessing", "single": []})",
       "post_processor: TemplateProcessing: 'single' must contain the sequence A once"},
      {&Fields::post_processor, R"({"type": "TemplateProcessing", "single": ["A"]})",
       "post_processor: TemplateProcessing: 'SpecialToken' is missing"},
      {&Fields::post_processor,
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}})",
       "post_processor: TemplateProcessing: special_tokens: 'x' is missing"},
      {&Fields::decoder, R"({"type": "Metaspace", "replacement": ""})",
       "decoder: Metaspace: the replacement must be one character"},
      {&Fields::decoder, R"({"type": "BPEDecoder", "suffix": ""})",
       "decoder: BPEDecoder: the suffix is empty"},
      {&Fields::decoder, R"({"type": "CTC", "pad_token": "", "word_delimiter_token": "|"})",
       "decoder: CTC: pad_token and word_delimiter_token must not be empty"},
      {&Fields::decoder, R"({"type": "Strip", "content": "", "start": 1, "stop": 0})",
       "decoder: Strip: the content must be one character"},
      {&Fields::decoder, R"({"type": "Strip", "content": "a", "start": -1, "stop": 0})",
       "decoder: Strip: 'start' must be a number"},
  };
  for (const auto& [field, value, error] : cases) {
    Fields fields;
    fields.*field = value;
    const bool is_right = std::string_view(error) == "no error";
    EXPECT_EQ(error_of(fields.json()), (is_right ? "" : "t.json: ") + std::string(error)) << value;
  }
  // Without the byte-level alphabet, an unk_token has to be there.
  EXPECT_EQ(error_of(Fields{.pre_tokenizer = "null", .model = R"("unk_token": "<unk>")"}.json()),
            "t.json: model: unk_token '<unk>' is not in the vocab");
}

TEST(TokenizerJson, OlderFilesLeaveFieldsOut) {
  Fields fields;
  fields.added_tokens = R"([{"id": 7, "content": ""}])";  // finds nothing
  fields.model = R"("dropout": null)";                    // no type
  fields.pre_tokenizer = R"({"type": "Metaspace", "replacement": "c", "add_prefix_space": false})";
  fields.decoder = fields.pre_tokenizer;
  EXPECT_THAT(fields.parse()->encode("a ab"), ElementsAre(0, 2, 3));
  EXPECT_EQ(fields.parse()->decode(Ids{2, 0, 2, 3}), " a ab");
  fields.pre_tokenizer = fields.decoder = R"({"type": "Metaspace", "replacement": "c"})";
  EXPECT_THAT(fields.parse()->encode("a ab"), ElementsAre(2, 0, 2, 3));
  EXPECT_EQ(fields.parse()->decode(Ids{2, 0, 2, 3}), "a ab");
  fields.added_tokens = "null";
  EXPECT_EQ(error_of(fields.json()), "no error");
}

TEST(TokenizerJson, TheFirstLineOfMergesTxtIsNoMerge) {
  Fields fields;
  fields.merges = R"(["#version: 0.2", "a b", "ab c"])";
  EXPECT_THAT(fields.parse()->encode("abc"), ElementsAre(4));
}

TEST(TokenizerJson, WhiteSpaceAndEscapesOfJson) {
  const std::string json = "\t{\r\n" + Fields().json().substr(1) + " \r\n\t";
  EXPECT_EQ(error_of(json), "no error");
  EXPECT_EQ(error_of("{\"model\": {\"vocab\": {\"a\\"),
            "t.json: not valid JSON: the end of a string expected at byte 24");
  Fields fields;
  fields.vocab = R"({"a": 0, "b": 1E1})";
  EXPECT_EQ(error_of(fields.json()),
            "t.json: model.vocab: the id of 'b', at byte 234, must be an integer of 0 to 2097151");
  fields.vocab = R"({"\u0061": 0, "b": 1, "c": 2, "ab": 3, "abc": 4, "\u0120": 5, "\u0120a": 6})";
  EXPECT_THAT(fields.parse()->encode("abc a"), ElementsAre(4, 6));
}

TEST(TokenizerJson, NothingMayFollowTheObject) {
  EXPECT_EQ(error_of(Fields{}.json() + " \n"), "no error");
  for (const std::string& rest : {std::string("x"), std::string(1, '\0'), std::string("{}")})
    EXPECT_THAT(error_of(Fields{}.json() + rest), HasSubstr("not valid JSON: the end of the text"));
}

TEST(TokenizerConfig, AddsAndReplacesAddedTokens) {
  const auto folder = std::filesystem::path(::testing::TempDir()) /
                      ("tokenizer_config_" + std::to_string(::getpid()));
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
  const auto error_with = [&](const std::string& config) -> std::string {
    std::ofstream(folder / "tokenizer_config.json") << config;
    try {
      Tokenizer::load(folder);
    } catch (const UserError& e) {
      return e.what();
    }
    return "no error";
  };
  for (const char* id : {"", "-1", "7x", "2097152"})
    EXPECT_THAT(error_with(R"({"added_tokens_decoder": {")" + std::string(id) +
                           R"(": {"content": "<s>"}}})"),
                HasSubstr("tokenizer.json: added_tokens_decoder of tokenizer_config.json: '" +
                          std::string(id) + "' is no id of 0 to 2097151"));
  EXPECT_THAT(error_with(R"({"added_tokens_decoder": []})"),
              HasSubstr("added_tokens_decoder of tokenizer_config.json: must be an object"));
  EXPECT_THAT(error_with("[]"), HasSubstr("tokenizer_config.json: must be an object"));
  EXPECT_EQ(error_with(R"({"eos_token": {}})"), "no error");
}

TEST(TokenizerConfig, MissingFolder) {
  EXPECT_THROW(Tokenizer::load("/no/such/folder"), UserError);
}

}  // namespace
}  // namespace nanovllm
