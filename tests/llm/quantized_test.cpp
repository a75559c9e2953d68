#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "bfloat16_rule.h"
#include "goldens.h"
#include "nanovllm/engine/llm_engine.h"
#include "tests/json_file.h"

namespace nanovllm::testing {
namespace {

const std::string kShared = kSource + "/../shared";

std::string folder_of(const std::string& name) { return kShared + "/models/quant/" + name; }

std::vector<Json> goldens_of(const std::string& name) {
  return read_goldens(kShared + "/goldens/quant-" + name + ".jsonl");
}

struct QuantizedCase {
  friend void PrintTo(const QuantizedCase& c, std::ostream* out) { *out << c.name; }
  std::string name;
  int64_t ranks;
};

class Quantized : public ::testing::TestWithParam<QuantizedCase> {};

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
  for (const Json& row : rows)
    prompts.push_back(row["prompt_token_ids"].get<std::vector<int32_t>>());
  const std::vector<RequestOutput> outputs = llm.generate(prompts, greedy(), false);
  ASSERT_GE(rows.size(), 5u);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].value("tie", false)) continue;  // the reference's best two logits are within 1e-3
    EXPECT_EQ(outputs[i].token_ids, rows[i]["greedy_token_ids"].get<std::vector<int32_t>>())
        << rows[i]["id"];
    EXPECT_EQ(outputs[i].finish_reason, rows[i]["finish_reason"]) << rows[i]["id"];
  }
}

std::vector<QuantizedCase> quantized_cases() {
  std::vector<QuantizedCase> all;
  for (const char* name :
       {"awq", "awq-g32", "ct-fp8-channel", "ct-fp8-tensor", "ct-w4a16", "ct-w4a16-asym",
        "ct-w8a16", "fp8-block", "fp8-block-bf16scale", "fp8-block-moe", "gptq", "gptq-8bit",
        "gptq-act", "tiny-tales-awq", "tiny-tales-fp8", "tiny-tales-int8"})
    for (const int64_t ranks : {1, 2, 3})
      if (ranks == 1 || !std::string(name).starts_with("tiny-tales")) all.push_back({name, ranks});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Dialects, Quantized, ::testing::ValuesIn(quantized_cases()),
                         [](const auto& info) {
                           std::string name =
                               info.param.name + "_ranks_" + std::to_string(info.param.ranks);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// The same tensors under the configurations that other exporters write.
struct Rewritten {
  friend void PrintTo(const Rewritten& r, std::ostream* out) { *out << r.name; }
  std::string name, folder;
  Json config;            // quantization_config, or null
  std::string file = "";  // a file beside config.json, and what it has
  Json contents = {};
};

class RewrittenQuantization : public ::testing::TestWithParam<Rewritten> {};

TEST_P(RewrittenQuantization, GivesTheReferenceTokens) {
  namespace fs = std::filesystem;
  const Rewritten& r = GetParam();
  if (!fs::exists(folder_of(r.folder))) GTEST_SKIP() << folder_of(r.folder) << " is not here";
  const fs::path folder =
      fs::path(::testing::TempDir()) / ("quantization_" + r.name + std::to_string(::getpid()));
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& entry : fs::directory_iterator(folder_of(r.folder)))
    if (entry.path().filename() != "config.json")
      fs::create_symlink(entry.path(), folder / entry.path().filename());
  Json config = json_file(folder_of(r.folder) + "/config.json");
  config["quantization_config"] = r.config;
  std::ofstream(folder / "config.json") << config;
  if (!r.file.empty()) std::ofstream(folder / r.file) << r.contents;
  LLM llm(folder.string(), {.dtype = "float32", .kv_cache_memory_bytes = 64 << 20});
  for (const Json& row : goldens_of(r.folder)) {
    if (row.value("tie", false)) continue;
    EXPECT_EQ(
        generate_one(llm, row["prompt_token_ids"].get<std::vector<int32_t>>(), greedy()).token_ids,
        row["greedy_token_ids"].get<std::vector<int32_t>>())
        << row["id"];
  }
}

std::vector<Rewritten> rewritten() {
  const auto scheme = [](const char* targets, const Json& weights, const Json& activations) {
    return Json{{"targets", {targets}}, {"weights", weights}, {"input_activations", activations}};
  };
  const auto compressed = [](const char* status, const char* format, const Json& groups) {
    return Json{{"quant_method", "compressed-tensors"},
                {"quantization_status", status},
                {"format", format},
                {"config_groups", groups},
                {"ignore", {"lm_head"}}};
  };
  const Json int4 = {{"num_bits", 4},     {"type", "int"},     {"strategy", "group"},
                     {"group_size", 128}, {"symmetric", true}, {"observer", "minmax"}};
  const Json int4_mse = {{"num_bits", 4},     {"type", "int"},     {"strategy", "group"},
                         {"group_size", 128}, {"symmetric", true}, {"observer", "mse"}};
  const Json fp8 = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  const Json token = {{"num_bits", 8}, {"type", "float"}, {"strategy", "token"}};
  const auto auto_round = [](const char* method, const char* format) {
    return Json{{"quant_method", method},
                {"bits", 4},
                {"group_size", 128},
                {"sym", true},
                {"data_type", "int"},
                {"packing_format", format},
                {"autoround_version", "0"},
                {"iters", 200},
                {"block_name_to_quantize", nullptr},
                {"extra_config", {{"lm_head", {{"bits", 16}, {"data_type", "fp"}}}}}};
  };
  const Json old_awq = {
      {"zero_point", true}, {"q_group_size", 128}, {"w_bit", 4}, {"version", "GEMM"}};
  Json old_awq_in_config = old_awq;
  old_awq_in_config["quant_method"] = "awq";
  const Json old_gptq = {{"bits", 4},         {"group_size", 128}, {"damp_percent", 0.01},
                         {"desc_act", false}, {"sym", true},       {"true_sequential", true}};
  const Json old_gptq_act = {{"bits", 4}, {"group_size", 128}, {"desc_act", true}, {"sym", false}};
  const Json nvidia = {{"quant_algo", "FP8"},
                       {"kv_cache_quant_algo", "FP8"},
                       {"exclude_modules", {"lm_head", "model.layers.0.mlp.gate*"}}};
  const Json producer = {{"name", "modelopt"}, {"version", "0.29.0"}};
  return {
      {"frozen", "ct-w4a16",
       compressed("frozen", "pack-quantized", {{"group_0", scheme("Linear", int4, nullptr)}})},
      {"groups", "ct-w4a16",
       compressed("compressed", "pack-quantized",
                  {{"group_0", scheme("re:.*self_attn.*", int4, nullptr)},
                   {"group_1", scheme("re:.*mlp.*", int4_mse, nullptr)}})},
      {"fp8_groups", "ct-fp8-channel",
       compressed("frozen", "float-quantized",
                  {{"group_0", scheme("re:.*self_attn.*", fp8, token)},
                   {"group_1", scheme("re:.*mlp.*", fp8, token)}})},
      {"awq_upper_case",
       "awq",
       {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"version", "GEMM"}}},
      {"awq_old_names", "awq", old_awq_in_config},
      {"awq_old_file", "awq", nullptr, "quant_config.json", old_awq},
      {"awq_other_file", "awq", nullptr, "quantize_config.json", old_awq},
      {"gptq_old_file", "gptq", nullptr, "quantize_config.json", old_gptq},
      {"gptq_old_file_in_order", "gptq-act", nullptr, "quantize_config.json", old_gptq_act},
      {"auto_round", "gptq", auto_round("auto-round", "auto_round:auto_gptq")},
      {"auto_round_of_intel", "gptq", auto_round("intel/auto-round", "auto_gptq")},
      {"auto_round_awq", "awq", auto_round("auto-round", "auto_round:auto_awq")},
      {"modelopt",
       "ct-fp8-tensor",
       {{"quant_method", "modelopt"},
        {"quant_algo", "FP8"},
        {"producer", producer},
        {"ignore", {"lm_head"}}}},
      {"modelopt_file",
       "ct-fp8-tensor",
       nullptr,
       "hf_quant_config.json",
       {{"producer", producer}, {"quantization", nvidia}}},
  };
}

INSTANTIATE_TEST_SUITE_P(Exporters, RewrittenQuantization, ::testing::ValuesIn(rewritten()),
                         [](const auto& info) { return info.param.name; });

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
    EXPECT_EQ(
        generate_one(llm, row["prompt_token_ids"].get<std::vector<int32_t>>(), greedy()).token_ids,
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
