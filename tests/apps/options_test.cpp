#include "apps/cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "apps/cli/help.h"
#include "nanovllm/base/arguments.h"
#include "nanovllm/base/config.h"
#include "tests/base/other_values.h"

// The command line must read back, field by field, what to_arguments() writes for workers.
namespace nanovllm::testing {
namespace {

void add_options(Command command, EngineConfig& config) { add_engine_options(command, config); }
void add_options(Command command, SamplingParams& params) { add_sampling_options(command, params); }

template <class Struct>
Struct parse(std::vector<std::string> arguments) {
  Program program("test", "");
  Struct values;
  add_options(program, values);
  program.parse(std::move(arguments));
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
  Program program("test", "");
  TypeParam values;
  add_options(program, values);
  const std::string help = help_of(program);
  TypeParam::for_each_field([&](const FieldInfo& field, auto) {
    if (field.option.empty()) return;
    std::string shown = "  " + std::string(field.option);
    if (const size_t comma = shown.find(','); comma != shown.npos) shown.insert(comma + 1, " ");
    EXPECT_THAT(help, ::testing::HasSubstr(shown)) << field.name;
  });
}

TEST(Options, BytesHaveUnits) {
  const Check bytes = byte_size();
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

TEST(Options, CountsHaveVllmsUnits) {
  const Check number = count();
  const auto read = [&](std::string text) {
    const std::string error = number(text);
    return error.empty() ? text : error;
  };
  // The examples of vLLM's documentation, and what follows from them.
  EXPECT_EQ(read("1k"), "1000");
  EXPECT_EQ(read("1K"), "1024");
  EXPECT_EQ(read("25.6k"), "25600");
  EXPECT_EQ(read("2m"), "2000000");
  EXPECT_EQ(read("2M"), "2097152");
  EXPECT_EQ(read("1.5g"), "1500000000");
  EXPECT_EQ(read("1G"), "1073741824");
  EXPECT_EQ(read("1t"), "1000000000000");
  EXPECT_EQ(read("1.001k"), "1001");
  EXPECT_EQ(read("1.0019k"), "1001");
  EXPECT_EQ(read("0.5k"), "500");
  EXPECT_EQ(read("007"), "7");
  EXPECT_EQ(read("-5"), "-5");
  EXPECT_EQ(read("1.5K"),
            "'1.5K' has a fraction of a power of 1,024; 1.5k is one of a power of "
            "1,000");
  for (const char* wrong : {"", "k", ".5k", "1.k", "1.5", "1.2.3k", "-1k", "+1k", "1 k", "1kk",
                            "1x", "1kb", "1e3k", "0x1k"})
    EXPECT_THAT(read(wrong), ::testing::HasSubstr("is not a whole number")) << wrong;
  for (const char* large : {"9223372036854775808", "8388608T", "9223373t", "9223372036854775807k",
                            "99999999999999999999k", "9223372036854775.9k"})
    EXPECT_THAT(read(large), ::testing::HasSubstr("is out of range")) << large;
}

TEST(Options, OfTheEngineTakeVllmsSpellings) {
  const EngineConfig config = parse<EngineConfig>(
      {"--max-model-len", "2K", "--max-num-seqs", "1k", "--max-num-batched-tokens", "25.6k",
       "--dtype", "half", "--load-format", "safetensors", "--kv-cache-dtype", "fp8_e4m3"});
  EXPECT_EQ(config.max_model_len, 2048);
  EXPECT_EQ(config.max_num_seqs, 1000);
  EXPECT_EQ(config.max_num_batched_tokens, 25600);
  EXPECT_NO_THROW(config.validate());
  for (const char* chosen : {"auto", "-1", "0"})
    EXPECT_EQ(parse<EngineConfig>({"--max-model-len", chosen}).max_model_len, 0) << chosen;
}

}  // namespace
}  // namespace nanovllm::testing
