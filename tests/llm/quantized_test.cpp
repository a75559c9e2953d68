#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "bfloat16_rule.h"
#include "goldens.h"
#include "nanovllm/engine/llm_engine.h"

namespace nanovllm::testing {
namespace {

const std::string kShared = kSource + "/../shared";

std::string folder_of(const std::string& name) { return kShared + "/models/quant/" + name; }

std::vector<Json> goldens_of(const std::string& name) {
  return read_goldens(kShared + "/goldens/quant-" + name + ".jsonl");
}

struct Case {
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
  std::string name;
  int64_t ranks;
};

class Quantized : public ::testing::TestWithParam<Case> {};

// The references' weights were dequantized by an independent program.
TEST_P(Quantized, Float32GivesTheReferenceTokens) {
  const auto& [name, ranks] = GetParam();
  if (!std::filesystem::exists(folder_of(name))) GTEST_SKIP() << folder_of(name) << " is not here";
  EngineConfig config;
  config.dtype = "float32";
  config.kv_cache_memory_bytes = 64 << 20;
  config.tensor_parallel_size = ranks;
  config.worker_path = NANOVLLM_BINARY;
  if (ranks > 1) config.device = "cpu";
  LLM llm(folder_of(name), config);
  std::vector<std::vector<int32_t>> prompts;
  const std::vector<Json> rows = goldens_of(name);
  for (const Json& row : rows) prompts.push_back(row["prompt_token_ids"]);
  const std::vector<RequestOutput> outputs = llm.generate(prompts, greedy(), false);
  ASSERT_GE(rows.size(), 5u);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].value("tie", false)) continue;  // the reference's best two logits are within 1e-3
    EXPECT_EQ(outputs[i].token_ids, rows[i]["greedy_token_ids"].get<std::vector<int32_t>>())
        << rows[i]["id"];
    EXPECT_EQ(outputs[i].finish_reason, rows[i]["finish_reason"]) << rows[i]["id"];
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* name :
       {"awq", "awq-g32", "ct-fp8-channel", "ct-fp8-tensor", "ct-w4a16", "ct-w4a16-asym",
        "ct-w8a16", "fp8-block", "fp8-block-bf16scale", "fp8-block-moe", "gptq", "gptq-8bit",
        "gptq-act", "tiny-tales-awq", "tiny-tales-fp8", "tiny-tales-int8"})
    for (const int64_t ranks : {1, 2, 3})
      if (ranks == 1 || !std::string(name).starts_with("tiny-tales")) all.push_back({name, ranks});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Dialects, Quantized, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.name + "_ranks_" + std::to_string(info.param.ranks);
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(QuantizationOfACheckpoint, MayBeNamedAsVllmNamesIt) {
  for (const auto& [name, quantization] : {std::pair{"awq", "awq_marlin"},
                                           {"awq", "awq"},
                                           {"gptq", "gptq_marlin"},
                                           {"gptq", "gptq"},
                                           {"ct-w4a16", "compressed-tensors"},
                                           {"fp8-block", "fp8"}}) {
    if (!std::filesystem::exists(folder_of(name)))
      GTEST_SKIP() << folder_of(name) << " is not here";
    EngineConfig config;
    config.dtype = "float32";
    config.kv_cache_memory_bytes = 64 << 20;
    config.quantization = quantization;
    LLM llm(folder_of(name), config);
    const Json row = goldens_of(name).at(0);
    EXPECT_EQ(generate_one(llm, row["prompt_token_ids"], greedy()).token_ids,
              row["greedy_token_ids"].get<std::vector<int32_t>>())
        << name << " " << quantization;
  }
}

// The limits are those of an emulation in PyTorch, with some room for another order of sums.
class QuantizedBfloat16 : public ::testing::TestWithParam<std::pair<std::string, Bfloat16Limits>> {
};

TEST_P(QuantizedBfloat16, IsAsCloseToFloat32AsItsFormatAllows) {
  const auto& [name, limits] = GetParam();
  if (!std::filesystem::exists(folder_of(name))) GTEST_SKIP() << folder_of(name) << " is not here";
  LLM llm(folder_of(name), {.dtype = "bfloat16", .kv_cache_memory_bytes = 64 << 20});
  expect_close_in_bfloat16(llm, goldens_of(name), limits);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, QuantizedBfloat16,
    ::testing::Values(std::pair{"tiny-tales-awq", Bfloat16Limits{0.0212, 0.982, 0.3}},
                      std::pair{"tiny-tales-fp8", Bfloat16Limits{0.0610, 0.959, 1.1}},
                      std::pair{"tiny-tales-int8", Bfloat16Limits{0.0205, 0.984, 0.3}}),
    [](const auto& info) {
      std::string name = info.param.first;
      std::ranges::replace(name, '-', '_');
      return name;
    });

// Against the references of the checkpoint that is not quantized. The limits are 1.15 times what an
// emulation with the same formats, but scales for blocks in E4M3, costs.
class QuantizedAtLoad : public ::testing::TestWithParam<std::pair<std::string, Bfloat16Limits>> {};

TEST_P(QuantizedAtLoad, IsAsCloseToFloat32AsItsFormatAllows) {
  const auto& [format, limits] = GetParam();
  EngineConfig config;
  config.dtype = "bfloat16";
  config.quantization = format;
  config.kv_cache_memory_bytes = 64 << 20;
  LLM llm(kTinyTales, config);
  expect_close_in_bfloat16(llm, goldens("tiny-tales"), limits);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedAtLoad,
                         ::testing::Values(std::pair{"int8", Bfloat16Limits{0.0253, 0.97, 1.1}},
                                           std::pair{"fp8", Bfloat16Limits{0.0748, 0.95, 1.1}}),
                         [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace nanovllm::testing
