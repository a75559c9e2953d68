#include "apps/cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "nanovllm/base/arguments.h"
#include "tests/base/other_values.h"

// The command line must read back, field by field, what to_arguments() writes for workers.
namespace nanovllm::testing {
namespace {

void add_options(CLI::App& app, EngineConfig& config) { add_engine_options(app, config); }
void add_options(CLI::App& app, SamplingParams& params) { add_sampling_options(app, params); }

template <class Struct>
Struct parse(std::vector<std::string> arguments) {
  CLI::App app;
  Struct values;
  add_options(app, values);
  std::ranges::reverse(arguments);  // CLI11 expects the last one first
  app.parse(arguments);
  return values;
}

template <class Struct>
class Options : public ::testing::Test {};
using Structs = ::testing::Types<EngineConfig, SamplingParams>;
TYPED_TEST_SUITE(Options, Structs);

TYPED_TEST(Options, ReadBackTheArgumentsOfEveryField) {
  TypeParam all;
  TypeParam::for_each_field([&](const FieldInfo& field, auto member) {
    if (field.option.empty()) return;
    const TypeParam expected = with_other_value(field, member);
    all.*member = expected.*member;
    EXPECT_EQ(parse<TypeParam>(to_arguments(expected)), expected) << field.name;
  });
  EXPECT_EQ(parse<TypeParam>(to_arguments(all)), all);
}

TYPED_TEST(Options, AreInTheHelpWithTheirDefaults) {
  CLI::App app;
  TypeParam values;
  add_options(app, values);
  const std::string help = app.help();
  TypeParam::for_each_field([&](const FieldInfo& field, auto) {
    if (field.option.empty()) return;
    EXPECT_THAT(help, ::testing::HasSubstr("  " + std::string(field.option))) << field.name;
  });
}

TEST(Options, BytesHaveUnits) {
  const CLI::Validator bytes = byte_size();
  const auto read = [&](std::string text) {
    const std::string error = bytes(text);
    return error.empty() ? text : error;
  };
  EXPECT_EQ(read("0"), "0");
  EXPECT_EQ(read("123"), "123");
  EXPECT_EQ(read("4G"), "4294967296");
  EXPECT_EQ(read("4GiB"), "4294967296");
  EXPECT_EQ(read("4gb"), "4294967296");
  EXPECT_EQ(read("1.5k"), "1536");
  EXPECT_EQ(read("512M"), "536870912");
  EXPECT_EQ(read("2T"), "2199023255552");
  EXPECT_EQ(read("9223372036854775807"), "9223372036854775807");
  EXPECT_EQ(read("8388607T"), "9223370937343148032");
  for (const char* wrong :
       {"", "G", "4X", "4GG", "1.5", "1.2.3M", "-1", "+1", "4 G", "1e9", "0x10"})
    EXPECT_THAT(read(wrong), ::testing::HasSubstr("is not a number of bytes")) << wrong;
  for (const char* large :
       {"9223372036854775808", "8388608T", "8388608.5T", "99999999999999999999G"})
    EXPECT_THAT(read(large), ::testing::HasSubstr("is out of range")) << large;
}

}  // namespace
}  // namespace nanovllm::testing
