#include "nanovllm/params/vllm_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "nanovllm/base/config.h"
#include "nanovllm/base/error.h"

namespace nanovllm {
namespace {

using ::testing::ThrowsMessage;

const std::vector<std::string> kModel = {"org/name", "/cache/org--name"};

TEST(VllmOptions, HaveNamesOfTheirOwnAndReasons) {
  std::set<std::string_view> names, of_bench_serve;  // which has another meaning of some names
  for (const VllmOption& option : vllm_options()) {
    auto& seen = option.of == VllmOption::Of::kBenchServe ? of_bench_serve : names;
    EXPECT_TRUE(seen.insert(option.name).second) << option.name;
    EXPECT_EQ(option.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"),
              std::string_view::npos)
        << option.name;
    EXPECT_EQ(option.reason.empty(), option.harmless == "*") << option.name;
  }
  // An option with an effect is a field.
  EngineConfig::for_each_field([&](const FieldInfo& field, auto) {
    if (field.option.empty()) return;
    EXPECT_EQ(find_vllm_option(field.name), nullptr) << field.name;
  });
}

TEST(VllmOptions, AreFoundWithDashesAndUnderscores) {
  ASSERT_NE(find_vllm_option("swap-space"), nullptr);
  EXPECT_EQ(find_vllm_option("swap_space"), find_vllm_option("swap-space"));
  EXPECT_EQ(find_vllm_option("swap"), nullptr);
  EXPECT_EQ(find_vllm_option(""), nullptr);
}

TEST(VllmOptions, WithoutAnEffectAreAcceptedAndOthersAreRefusedWithTheReason) {
  const auto check = [](std::string_view name, std::string_view value) {
    find_vllm_option(name)->check(value, kModel, "it");
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

}  // namespace
}  // namespace nanovllm
