#include "nanovllm/model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nanovllm/families/load.h"
#include "nanovllm/model/model_spec.h"
#include "tests/model/model_test_util.h"

namespace nanovllm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Regression 32.
TEST(RopeConfig, ReadsEveryFormOfRopeScaling) {
  const Json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const auto is_none = [](const Json& config) {
    return parse(config).ropes.front().scaling == RopeConfig::Scaling::kNone;
  };
  EXPECT_TRUE(is_none(tiny_llama()));
  EXPECT_TRUE(is_none(with(tiny_llama(), "rope_scaling", nullptr)));
  EXPECT_TRUE(is_none(with(tiny_llama(), "rope_scaling", {{"type", "default"}})));
  EXPECT_TRUE(is_none(with(tiny_llama(), "rope_scaling", {{"rope_type", "default"}})));
  EXPECT_TRUE(is_none(with(tiny_llama(), "rope_parameters", nullptr)));
  EXPECT_TRUE(is_none(with(tiny_llama(), "rope_parameters", {{"rope_type", "default"}})));

  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const char* type : {"type", "rope_type"}) {
      const ModelSpec c = parse(with(tiny_llama(), key, with(llama3, type, "llama3")));
      EXPECT_EQ(c.ropes.front().scaling, RopeConfig::Scaling::kLlama3);
      EXPECT_EQ(c.ropes.front().factor, 32);
      EXPECT_EQ(c.ropes.front().low_freq_factor, 1);
      EXPECT_EQ(c.ropes.front().high_freq_factor, 4);
      EXPECT_EQ(c.ropes.front().original_max_position_embeddings, 8192);
      const ModelSpec linear = parse(with(tiny_llama(), key, {{type, "linear"}, {"factor", 2}}));
      EXPECT_EQ(linear.ropes.front().scaling, RopeConfig::Scaling::kLinear);
      EXPECT_EQ(linear.ropes.front().factor, 2);
    }
    EXPECT_THAT(user_error([&] {
                  parse(with(tiny_llama(), key, {{"rope_type", "longrope"}, {"factor", 4}}));
                }),
                AllOf(StartsWith("folder/config.json: "), HasSubstr(key), HasSubstr("rope_type"),
                      HasSubstr("longrope"), HasSubstr("default, linear, llama3 and yarn")));
  }
  for (const char* missing :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    EXPECT_THAT(user_error([&] {
                  parse(with(tiny_llama(), "rope_scaling",
                             without(with(llama3, "rope_type", "llama3"), missing)));
                }),
                HasSubstr(std::string("rope_scaling.") + missing + " is missing"));
  EXPECT_THAT(error_with("rope_scaling", "linear"), HasSubstr("rope_scaling is \"linear\""));
  EXPECT_THAT(error_with("rope_scaling", {{"type", 3}}), HasSubstr("rope_scaling.type is 3"));
  for (const char* key : {"factor", "beta_fast", "original_max_position_embeddings"})
    EXPECT_THAT(error_with("rope_parameters", {{"rope_type", nullptr}, {key, 4}}),
                HasSubstr("rope_parameters.rope_type is missing"));
  EXPECT_THAT(error_with("rope_scaling", {{"type", "linear"}, {"factor", 0}}),
              HasSubstr("rope_scaling.factor is 0"));
  EXPECT_THAT(error_with("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}),
              HasSubstr("rope_parameters.full_attention"));
}

TEST(RopeConfig, ReadsYarn) {
  const Json yarn = {{"factor", 4.0}, {"original_max_position_embeddings", 128}};
  for (const char* key : {"rope_scaling", "rope_parameters"})
    for (const char* type : {"type", "rope_type"}) {
      const ModelSpec c = parse(with(tiny_llama(), key, with(yarn, type, "yarn")));
      EXPECT_EQ(c.ropes.front().scaling, RopeConfig::Scaling::kYarn);
      EXPECT_EQ(c.ropes.front().factor, 4);
      EXPECT_EQ(c.ropes.front().original_max_position_embeddings, 128);
      EXPECT_EQ(c.ropes.front().beta_fast, 32);
      EXPECT_EQ(c.ropes.front().beta_slow, 1);
      EXPECT_TRUE(c.ropes.front().truncate);
      EXPECT_DOUBLE_EQ(c.ropes.front().attention_factor, 0.1 * std::log(4.0) + 1);
      EXPECT_EQ(c.max_position_embeddings, 512);
    }
  const auto rope = [&](const Json& more) {
    Json scaling = with(yarn, "rope_type", "yarn");
    scaling.update(more);
    return parse(with(tiny_llama(), "rope_scaling", scaling)).ropes.front();
  };
  EXPECT_EQ(rope({{"attention_factor", 1.5}}).attention_factor, 1.5);
  EXPECT_DOUBLE_EQ(rope({{"mscale", 2}, {"mscale_all_dim", 0.5}}).attention_factor,
                   (0.2 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1));
  EXPECT_EQ(rope({{"mscale", 1}, {"mscale_all_dim", 1}}).attention_factor, 1);
  EXPECT_DOUBLE_EQ(rope({{"mscale", 2}}).attention_factor, 0.1 * std::log(4.0) + 1);
  EXPECT_EQ(rope({{"factor", 0.5}}).attention_factor, 1);
  EXPECT_EQ(rope({{"beta_fast", 16}}).beta_fast, 16);
  EXPECT_EQ(rope({{"beta_slow", 2.5}}).beta_slow, 2.5);
  EXPECT_FALSE(rope({{"truncate", false}}).truncate);
  // The original context is by default the model's own, and that may be longer than yarn's.
  const ModelSpec own =
      parse(with(tiny_llama(), "rope_scaling", {{"type", "yarn"}, {"factor", 3}}));
  EXPECT_EQ(own.ropes.front().original_max_position_embeddings, 64);
  EXPECT_EQ(own.max_position_embeddings, 192);
  EXPECT_EQ(parse(with(tiny_llama(), "rope_scaling", {{"type", "yarn"}, {"factor", 0.5}}))
                .max_position_embeddings,
            64);
  EXPECT_THAT(error_with("rope_scaling", {{"type", "yarn"}}), HasSubstr("factor is missing"));
  EXPECT_THAT(error_with("rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"truncate", 1}}),
              HasSubstr("rope_scaling.truncate is 1"));
  EXPECT_THAT(error_with("rope_parameters", {{"type", "yarn"}, {"factor", 4}, {"rope_theta", 1}}),
              HasSubstr("rope_parameters.rope_theta is 1"));
}

TEST(RopeConfig, OptionsReplaceTheRotaryEmbedding) {
  const auto load = [](const Json& config, const std::string& rope, const std::string& overrides) {
    EngineConfig options;
    options.rope_scaling = rope;
    options.hf_overrides = overrides;
    return parse_model_spec(config, {}, "folder", options);
  };
  const std::string yarn = R"({"rope_type": "yarn", "factor": 4.0})";
  const Json linear = with(tiny_llama(), "rope_parameters",
                           {{"rope_theta", 5e5}, {"rope_type", "linear"}, {"factor", 2}});
  for (const ModelSpec& c :
       {load(linear, yarn, ""), load(linear, "", R"({"rope_scaling": )" + yarn + "}"),
        load(linear, "", R"({"rope_parameters": )" + yarn + "}")}) {
    EXPECT_EQ(c.ropes.front().scaling, RopeConfig::Scaling::kYarn);
    EXPECT_EQ(c.ropes.front().factor, 4);
    EXPECT_EQ(c.ropes.front().theta, 5e5);  // the model's, since the option has none
    EXPECT_EQ(c.max_position_embeddings, 256);
  }
  EXPECT_EQ(load(linear, R"({"rope_type": "default", "rope_theta": 7})", "").ropes.front().theta,
            7);
  EXPECT_EQ(load(linear, "", "{}").ropes.front().scaling, RopeConfig::Scaling::kLinear);
  const auto error = [&](const std::string& rope, const std::string& overrides) {
    return user_error([&] { load(linear, rope, overrides); });
  };
  EXPECT_EQ(error(R"({"rope_type": "yarn"})", ""), "--rope-scaling: factor is missing");
  EXPECT_EQ(error(R"({"factor": 4})", ""),
            "--rope-scaling: rope_type is missing; it must be default, linear, llama3 or yarn");
  EXPECT_THAT(error("", R"({"rope_parameters": {"rope_theta": 7}})"),
              StartsWith("--hf-overrides: rope_parameters.rope_type is missing"));
  EXPECT_THAT(error("{", ""), StartsWith("--rope-scaling: not valid JSON"));
  EXPECT_EQ(error("4", ""), "--rope-scaling: must be a JSON object");
  EXPECT_EQ(error("", R"({"rope_scaling": 4})"),
            "--hf-overrides: rope_scaling is 4; it must be an object or null");
  EXPECT_EQ(error("", R"({"rope_scaling": {"type": "yarn"}})"),
            "--hf-overrides: rope_scaling.factor is missing");
  EXPECT_EQ(error("", R"({"num_hidden_layers": 4})"),
            "--hf-overrides: \"num_hidden_layers\" cannot be overridden, only rope_parameters (or "
            "rope_scaling) and max_position_embeddings");
  EXPECT_EQ(error("", R"({"max_position_embeddings": 0})"),
            "--hf-overrides: max_position_embeddings is 0; it must be an integer from 1 to "
            "2147483647");
  // What Qwen's model cards say for a long context.
  const ModelSpec longer = load(linear, "",
                                R"({"rope_parameters": {"rope_type": "yarn", "factor": 4.0,
          "original_max_position_embeddings": 32768}, "max_position_embeddings": 131072})");
  EXPECT_EQ(longer.max_position_embeddings, 131072);
  EXPECT_EQ(longer.ropes.front().original_max_position_embeddings, 32768);
  EXPECT_EQ(load(linear, yarn, R"({"max_position_embeddings": 9})").max_position_embeddings, 36);
}

TEST(RopeTables, FollowTheFormula) {
  const RopeConfig rope{.theta = 1e6};
  const RopeTables tables = rope_tables(rope, 128, 2000);
  ASSERT_EQ(tables.cos.size(), 2000u * 64);
  for (const size_t position : {0, 1, 7, 1999})
    for (size_t i = 0; i < 64; ++i) {
      const double angle =
          static_cast<double>(position) * std::pow(1e6, -static_cast<double>(2 * i) / 128);
      // Half a unit in the last place of a float angle of 2,000 is 6e-5.
      EXPECT_NEAR(tables.cos[position * 64 + i], std::cos(angle), 3e-4);
      EXPECT_NEAR(tables.sin[position * 64 + i], std::sin(angle), 3e-4);
    }
}

TEST(RopeTables, ScaleLowFrequenciesAsLlama3Does) {
  const RopeConfig rope{.theta = 500000,
                        .scaling = RopeConfig::Scaling::kLlama3,
                        .factor = 32,
                        .original_max_position_embeddings = 8192,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4};
  const std::vector<float> frequencies = rope_frequencies(rope, 64);
  ASSERT_EQ(frequencies.size(), 32u);
  int kept = 0, mixed = 0, stretched = 0;
  for (size_t i = 0; i < 32; ++i) {
    const double plain = std::pow(500000.0, -static_cast<double>(2 * i) / 64);
    const double turns = 8192 * plain / (2 * M_PI);  // in the original context
    // Llama 3's rule: frequencies with 4 or more turns stay, those with less than 1 turn are
    // divided by 32, and those between are interpolated by their number of turns.
    const double share = std::clamp((turns - 1) / (4 - 1), 0.0, 1.0);
    EXPECT_NEAR(frequencies[i] / (plain * (share + (1 - share) / 32)), 1, 2e-6) << i;
    ++(turns > 4 ? kept : turns < 1 ? stretched : mixed);
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(mixed, 0);
  EXPECT_GT(stretched, 0);

  const RopeConfig linear{.theta = 10000, .scaling = RopeConfig::Scaling::kLinear, .factor = 4};
  EXPECT_FLOAT_EQ(rope_frequencies(linear, 8)[0], 0.25f);
  EXPECT_FLOAT_EQ(rope_frequencies(linear, 8)[2], 0.0025f);
}

// Qwen3's published settings. With 32 turns or more in the original context a frequency stays, with
// at most one it is divided by the factor; the limits are rounded to whole dimensions.
TEST(RopeTables, ScaleFrequenciesAsYarnDoes) {
  for (const bool truncate : {true, false}) {
    const RopeConfig rope{.theta = 1e6,
                          .scaling = RopeConfig::Scaling::kYarn,
                          .factor = 4,
                          .original_max_position_embeddings = 32768,
                          .truncate = truncate,
                          .attention_factor = 1.25};
    const std::vector<float> frequencies = rope_frequencies(rope, 128);
    ASSERT_EQ(frequencies.size(), 64u);
    // The dimension i with t turns: 32768 * 1e6^(-2 i / 128) = 2 pi t.
    const auto dimension = [](double turns) {
      return 64 * std::log(32768 / (2 * M_PI * turns)) / std::log(1e6);
    };
    const double low = truncate ? std::floor(dimension(32)) : dimension(32);
    const double high = truncate ? std::ceil(dimension(1)) : dimension(1);
    EXPECT_GT(low, 10);
    EXPECT_LT(high, 50);
    for (size_t i = 0; i < 64; ++i) {
      const double plain = std::pow(1e6, -static_cast<double>(2 * i) / 128);
      const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      EXPECT_NEAR(frequencies[i] / (plain * (1 - stretched + stretched / 4)), 1, 2e-6) << i;
    }
    const RopeTables tables = rope_tables(rope, 128, 3);
    EXPECT_EQ(tables.cos[0], 1.25f);
    EXPECT_EQ(tables.sin[64 + 63], std::sin(frequencies[63]) * 1.25f);
  }
  // A range of no width divides by no zero.
  const RopeConfig narrow{.theta = 1e6,
                          .scaling = RopeConfig::Scaling::kYarn,
                          .factor = 4,
                          .original_max_position_embeddings = 2,
                          .beta_fast = 1,
                          .beta_slow = 1};
  for (const float frequency : rope_frequencies(narrow, 8)) EXPECT_TRUE(std::isfinite(frequency));
}

}  // namespace
}  // namespace nanovllm
