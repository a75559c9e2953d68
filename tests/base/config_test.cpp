#include "nanovllm/base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "nanovllm/base/dtype.h"
#include "nanovllm/base/error.h"

namespace nanovllm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(SamplingParams, EveryFieldOutOfRangeIsNamed) {
  EXPECT_NO_THROW(SamplingParams().validate());
  const std::pair<const char*, std::function<void(SamplingParams&)>> bad[] = {
      {"temperature", [](auto& p) { p.temperature = -0.1; }},
      {"temperature", [](auto& p) { p.temperature = std::nan(""); }},
      {"temperature", [](auto& p) { p.temperature = INFINITY; }},
      {"temperature is 1e+300", [](auto& p) { p.temperature = 1e300; }},
      {"temperature", [](auto& p) { p.temperature = 3.5e38; }},
      {"top_p", [](auto& p) { p.top_p = 0; }},
      {"top_p", [](auto& p) { p.top_p = 1.1; }},
      {"top_k", [](auto& p) { p.top_k = -2; }},
      {"min_p", [](auto& p) { p.min_p = std::nan(""); }},
      {"max_tokens", [](auto& p) { p.max_tokens = 0; }},
      {"min_tokens", [](auto& p) { p.min_tokens = 65; }},
      {"logprobs", [](auto& p) { p.logprobs = 21; }},
      {"prompt_logprobs", [](auto& p) { p.prompt_logprobs = -1; }},
      {"n is 0", [](auto& p) { p.n = 0; }},
      {"stop_token_ids", [](auto& p) { p.stop_token_ids = {-5}; }},
      {"stop",
       [](auto& p) {
         p.stop = {"x", ""};
       }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = 2.5; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = std::nan(""); }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
      {"repetition_penalty is 1e-300", [](auto& p) { p.repetition_penalty = 1e-300; }},
      {"from 1e-06 to 1000000", [](auto& p) { p.repetition_penalty = 1e7; }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{-1, 1.0}};
       }},
      {"logit_bias",
       [](auto& p) {
         p.logit_bias = {{5, 101.0}};
       }},
      {"allowed_token_ids", [](auto& p) { p.allowed_token_ids.emplace(); }},
      {"bad_words", [](auto& p) { p.bad_words = {""}; }},
  };
  for (const auto& [name, change] : bad) {
    SamplingParams params;
    change(params);
    EXPECT_THAT([&] { params.validate(); }, ThrowsMessage<UserError>(HasSubstr(name)));
  }
}

TEST(SamplingParams, ExtremeValuesInRangeAreAccepted) {
  SamplingParams p;
  p.temperature = 3e38;
  p.top_p = 1e-300;
  p.min_p = 1e-300;
  p.top_k = p.max_tokens = p.min_tokens = kNoMaxTokens;
  p.repetition_penalty = 1e-6;
  p.stop_token_ids = {std::numeric_limits<int32_t>::max()};
  p.seed = std::numeric_limits<uint64_t>::max();
  EXPECT_NO_THROW(p.validate());
}

TEST(EngineConfig, TheStepSizeDependsOnTheDevice) {
  EngineConfig config;
  config.device = "cuda";
  config.choose_batched_tokens();
  EXPECT_EQ(config.max_num_batched_tokens, 16384);
  config.device = "cpu";
  config.choose_batched_tokens();  // it is known already
  EXPECT_EQ(config.max_num_batched_tokens, 16384);
  config = {.cpu_batched_tokens = 512};
  config.choose_batched_tokens();
  EXPECT_EQ(config.max_num_batched_tokens, 512);
}

TEST(EngineConfig, EveryFieldOutOfRangeIsNamed) {
  EXPECT_NO_THROW(EngineConfig().validate());
  const std::pair<const char*, std::function<void(EngineConfig&)>> bad[] = {
      {"device", [](auto& c) { c.device = "tpu"; }},
      {"dtype", [](auto& c) { c.dtype = "int8"; }},
      {"load_format", [](auto& c) { c.load_format = "gguf"; }},
      {"max_model_len", [](auto& c) { c.max_model_len = -1; }},
      {"max_num_seqs", [](auto& c) { c.max_num_seqs = 0; }},
      {"gpu_memory_utilization", [](auto& c) { c.gpu_memory_utilization = 1.5; }},
      {"block_size", [](auto& c) { c.block_size = 24; }},
      {"tensor_parallel_size", [](auto& c) { c.tensor_parallel_size = 0; }},
      {"step_timeout", [](auto& c) { c.step_timeout = std::nan(""); }},
      {"threads", [](auto& c) { c.threads = -1; }},
      {"quantization is 'awq_'; it must be one of auto, fp8, int8",
       [](auto& c) { c.quantization = "awq_"; }},
  };
  for (const auto& [name, change] : bad) {
    EngineConfig config;
    change(config);
    EXPECT_THAT([&] { config.validate(); }, ThrowsMessage<UserError>(HasSubstr(name)));
  }
  EngineConfig named;
  named.quantization = "compressed-tensors";
  EXPECT_NO_THROW(named.validate());
}

TEST(DType, HalfPrecisionIsExactBothWays) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float f = f16_to_f32(half);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(f))));
      continue;
    }
    ASSERT_EQ(f32_to_f16(f), half);
    const float b = bf16_to_f32(half);
    ASSERT_TRUE(std::isnan(b) || f32_to_bf16(b) == half);
  }
  EXPECT_EQ(f32_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(f16_to_f32(1), 0x1p-24f);
  EXPECT_EQ(f32_to_f16(0x1p-25f), 0);           // halfway, rounds to even
  EXPECT_EQ(f32_to_f16(0x1.8p-24f), 2);         // halfway, rounds to even
  EXPECT_EQ(f32_to_bf16(1.00390625f), 0x3f80);  // halfway between 1 and the next
  EXPECT_EQ(f32_to_bf16(1.01171875f), 0x3f82);
}

}  // namespace
}  // namespace nanovllm
