// Answers over two GPUs. In float32 they must be the reference's, and with seeds those of one GPU.
// (gpu.SumsOverTwoGpus tests sums of all sizes, gpu.DecodeAgainstPrefill.* tests bfloat16.)
#include <gtest/gtest.h>

#include "goldens.h"
#include "nanovllm/llm.h"
#include "tests/gpus.h"

namespace nanovllm::testing {
namespace {

class GpuRanks : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (num_gpus() < 2) GTEST_SKIP() << "needs two GPUs; " << num_gpus() << " are here";
  }
  static EngineConfig config_of(int world, const std::string& dtype) {
    EngineConfig config;
    config.device = "cuda";
    config.dtype = dtype;
    config.kv_cache_memory_bytes = 256 << 20;
    config.tensor_parallel_size = world;
    config.worker_path = NANOVLLM_BINARY;
    return config;
  }
  static std::vector<std::vector<int32_t>> answers(const EngineConfig& config,
                                                   const std::vector<SamplingParams>& params) {
    LLM llm(model_folder(GetParam()), config);
    std::vector<std::vector<int32_t>> prompts;
    for (const Json& row : goldens(GetParam()))
      prompts.push_back(row["prompt_token_ids"].get<std::vector<int32_t>>());
    std::vector<std::vector<int32_t>> found;
    for (const RequestOutput& output : llm.generate(prompts, params, false))
      found.push_back(output.token_ids);
    return found;
  }
  static std::vector<SamplingParams> seeded() {
    std::vector<SamplingParams> all(goldens(GetParam()).size());
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].max_tokens = 32;
      all[i].ignore_eos = true;
      all[i].temperature = 0.9;
      all[i].seed = i;
      if (i % 3 == 1) all[i].top_p = 0.9;
      if (i % 4 == 1) all[i].top_k = 20;
      if (i % 5 == 2) all[i].min_p = 0.05;
      if (i % 4 == 3) all[i].repetition_penalty = 1.3;
    }
    return all;
  }
};

TEST_P(GpuRanks, Float32GivesTheReferenceTokens) {
  const std::vector<Json> rows = goldens(GetParam());
  for (const bool eager : {false, true}) {
    EngineConfig config = config_of(2, "float32");
    config.enforce_eager = eager;
    const auto found = answers(
        config, std::vector<SamplingParams>(rows.size(), {.temperature = 0, .max_tokens = 64}));
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].value("tie", false)) continue;  // the reference's best two logits are within 1e-3
      EXPECT_EQ(found[i], rows[i]["greedy_token_ids"].get<std::vector<int32_t>>()) << rows[i]["id"];
    }
  }
}

TEST_P(GpuRanks, SeedsGiveTheAnswersOfOneGpu) {
  EXPECT_EQ(answers(config_of(2, "float32"), seeded()), answers(config_of(1, "float32"), seeded()));
}

// In bfloat16 two GPUs round other partial sums than one GPU, but the same ones in every run.
TEST_P(GpuRanks, SeedsGiveTheSameAnswersAgainInBfloat16) {
  const EngineConfig config = config_of(2, "bfloat16");
  EXPECT_EQ(answers(config, seeded()), answers(config, seeded()));
}

INSTANTIATE_TEST_SUITE_P(Models, GpuRanks,
                         ::testing::Values("tiny-tales", "llama", "qwen2", "qwen3-sharded",
                                           "smollm3", "olmo2"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace nanovllm::testing
