#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "nanovllm/base/arguments.h"
#include "other_values.h"

namespace nanovllm::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <class Struct>
class Fields : public ::testing::Test {};
using Structs = ::testing::Types<EngineConfig, SamplingParams>;
TYPED_TEST_SUITE(Fields, Structs);

TYPED_TEST(Fields, HaveUniqueNamesAndOptions) {
  std::set<std::string_view> names, flags;
  TypeParam::for_each_field([&](const FieldInfo& field, auto) {
    EXPECT_TRUE(names.insert(field.name).second) << field.name;
    if (field.option.empty()) return;
    EXPECT_TRUE(flags.insert(field.flag()).second) << field.name;
    EXPECT_TRUE(field.flag().starts_with("--")) << field.name;
    EXPECT_STRNE(field.help, "") << field.name;
  });
  EXPECT_GT(flags.size(), 10u);
}

TYPED_TEST(Fields, OutOfRangeAreRefusedByName) {
  TypeParam::for_each_field([&](const FieldInfo& field, auto member) {
    const auto refuses = [&](auto value) {
      TypeParam values;
      values.*member = value;
      EXPECT_THAT([&] { values.validate(); },
                  ThrowsMessage<UserError>(AllOf(HasSubstr(std::string(field.name) + " is "),
                                                 HasSubstr("it must be "))));
    };
    using T = std::remove_reference_t<decltype(TypeParam().*member)>;
    if constexpr (std::same_as<T, std::string>) {
      if (field.allowed.choices[0] != nullptr) refuses("something else");
    } else if constexpr (std::same_as<T, double> || std::same_as<T, int64_t> ||
                         std::same_as<T, std::optional<int64_t>>) {
      using Number = std::conditional_t<std::same_as<T, double>, double, int64_t>;
      refuses(static_cast<Number>(field.allowed.least - 1));
      if (field.allowed.excludes_least) refuses(static_cast<Number>(field.allowed.least));
      if (std::isfinite(field.allowed.most)) refuses(static_cast<Number>(2 * field.allowed.most));
      if constexpr (std::same_as<T, double>) refuses(std::nan(""));
    }
  });
}

TEST(Arguments, ContainOnlyValuesThatDifferFromTheDefault) {
  EXPECT_THAT(to_arguments(EngineConfig()), ::testing::IsEmpty());
  EngineConfig config;
  config.block_size = 32;
  config.gpu_memory_utilization = 0.35;
  config.async_scheduling = false;
  config.worker_path = "somewhere";  // this field has no option
  EXPECT_THAT(to_arguments(config),
              ::testing::ElementsAre("--gpu-memory-utilization", "0.35", "--block-size", "32",
                                     "--no-async-scheduling"));
}

TEST(Arguments, BecomeNamesOfFieldsInMessages) {
  EXPECT_EQ(with_field_names("--max-model-len is 1; --max-model-length and --block-size stay"),
            "max_model_len is 1; --max-model-length and block_size stay");
  EXPECT_EQ(with_field_names("turn it off with --no-async-scheduling"),
            "turn it off with async_scheduling=false");
}

}  // namespace
}  // namespace nanovllm::testing
