#include "nanovllm/params/unsupported.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "nanovllm/base/config.h"
#include "nanovllm/base/error.h"

namespace nanovllm {
namespace {

using ::testing::ThrowsMessage;
using Place = UnsupportedName::Place;

constexpr uint32_t kOptions =
    Place::kEngineOption | Place::kServeOption | Place::kBenchOption | Place::kBenchServeOption;
const std::vector<std::string> kModel = {"org/name", "/cache/org--name"};

TEST(UnsupportedNames, AreListedOnceForEachPlaceAndOptionsHaveReasons) {
  std::map<std::string_view, uint32_t> places;
  for (const UnsupportedName& name : unsupported_names()) {
    // A command has the options of the engine and, if it is one, those of the server or of bench.
    const bool is_option = (name.places & kOptions) != 0;
    const uint32_t here = (name.places & (kOptions & ~Place::kBenchServeOption)) != 0
                              ? kOptions & ~Place::kBenchServeOption
                              : name.places;
    EXPECT_EQ(places[name.name] & here, 0u) << name.name;
    places[name.name] |= here;
    EXPECT_EQ(name.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789" +
                                          std::string(is_option ? "-" : "_")),
              std::string_view::npos)
        << name.name;
    EXPECT_EQ(name.reason.empty(), !is_option || name.harmless == "*") << name.name;
    if (is_option || name.harmless == "LIST") continue;
    EXPECT_TRUE(Json::parse(name.harmless_json()).is_array()) << name.name;
  }
  // A name with an effect is a field.
  EngineConfig::for_each_field([&](const FieldInfo& field, auto) {
    if (field.option.empty()) return;
    EXPECT_EQ(find_unsupported(field.name, Place::kEngineOption | Place::kServeOption), nullptr)
        << field.name;
  });
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    EXPECT_EQ(find_unsupported(field.name, ~kOptions), nullptr) << field.name;
  });
}

TEST(UnsupportedNames, OfOptionsAreFoundWithDashesAndUnderscores) {
  const auto* option = find_unsupported("swap-space", Place::kEngineOption);
  ASSERT_NE(option, nullptr);
  EXPECT_EQ(find_unsupported("swap_space", Place::kEngineOption), option);
  EXPECT_EQ(find_unsupported("swap", Place::kEngineOption), nullptr);
  EXPECT_EQ(find_unsupported("", Place::kEngineOption), nullptr);
  EXPECT_EQ(find_unsupported("swap_space", Place::kBody), nullptr);
  EXPECT_EQ(find_unsupported("best-of", Place::kBody), nullptr);
}

TEST(UnsupportedNames, OfOptionsAreRefusedWithTheReasonIfTheyAskForSomething) {
  const auto check = [](const char* name, std::string_view value) {
    find_unsupported(name, Place::kEngineOption)->check(value, kModel, "it");
  };
  for (const char* value : {"0", "4", "anything", "{\"a\": 1}"}) check("compilation-config", value);
  for (const char* value : {"", "None", "null", "{}", "[]"}) check("kv-transfer-config", value);
  check("data-parallel-size", "1");
  check("tokenizer", "org/name");
  check("tokenizer", "/cache/org--name");
  check("enable-lora", "false");
  EXPECT_THAT(
      [&] { check("enable-lora", "true"); },
      ThrowsMessage<UserError>("it is not supported: adapters, such as LoRA's, are not supported"));
  EXPECT_THAT([&] { check("tokenizer", "org/other"); },
              ThrowsMessage<UserError>(
                  "it is not supported: the tokenizer is the one in the model's folder"));
  for (const char* value : {"2", "11", "1|", "|"})
    EXPECT_THROW(check("data-parallel-size", value), UserError) << value;
}

TEST(UnsupportedNames, OfFieldsAreRefusedByNameIfTheyAskForSomething) {
  const auto refuse = [](const char* name, const char* value, uint32_t place) {
    return refuse_unsupported(name, Json::parse(value), place);
  };
  EXPECT_FALSE(refuse("best_of", "5", Place::kLine));  // the user's own
  EXPECT_FALSE(refuse("temperature", "5", Place::kBody));
  for (const char* value : {"null", "1", "1.0"})
    EXPECT_TRUE(refuse("best_of", value, Place::kBody));
  for (const char* value : {"null", R"("auto")"})
    EXPECT_TRUE(refuse("tool_choice", value, Place::kLine));
  for (const char* value : {"[]", "{}"}) EXPECT_TRUE(refuse("container", value, Place::kMessages));
  EXPECT_THAT([&] { refuse("best_of", "2", Place::kBody); },
              ThrowsMessage<UserError>("best_of 2 is not supported"));
  EXPECT_THAT([&] { refuse("truncate_prompt_tokens", "{}", Place::kLine); },
              ThrowsMessage<UserError>("truncate_prompt_tokens {} is not supported"));
  EXPECT_THAT([&] { refuse("prompt", "{}", Place::kResponses); },
              ThrowsMessage<UserError>("prompt {} is not supported"));
}

}  // namespace
}  // namespace nanovllm
