#include "apps/options.h"

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

}  // namespace
}  // namespace nanovllm::testing
