#include "goldens.h"
#include "bfloat16_rule.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/llm.h"
#include "nanovllm/ops/cuda_library.h"
#include "tests/json_file.h"
#include "tests/model/model_test_util.h"

namespace nanovllm::testing {
namespace {

const std::vector<std::string> kModels = {"tiny-tales",      "llama",      "qwen2",
                                          "qwen3-sharded",   "qwen3-yarn", "qwen3-moe",
                                          "qwen3-moe-mixed", "smollm3",    "olmo2"};

EngineConfig float32() {
  EngineConfig config;
  config.dtype = "float32";
  config.kv_cache_memory_bytes = 64 << 20;
  return config;
}

struct Case {
  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

  std::string name;
  std::string model;
  EngineConfig config = float32();
  bool alone = false;
  int64_t rounds = 1;       // how often each row is requested
  int64_t preemptions = 0;  // the least number
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& model : kModels) {
    const auto add = [&](const std::string& what, const auto& change) {
      std::string name = model + "_" + what;
      std::ranges::replace(name, '-', '_');
      all.push_back({name, model, float32()});
      change(all.back());
    };
    add("batch", [](Case&) {});
    add("alone", [](Case& c) { c.alone = true; });
    for (const int64_t size : {16, 64, 256})
      add("blocks_of_" + std::to_string(size), [&](Case& c) { c.config.block_size = size; });
    add("preempted", [&](Case& c) {
      c.config.block_size = 16;
      c.config.num_gpu_blocks_override = model == "tiny-tales" ? 128 : 26;
      c.config.enable_prefix_caching = false;
      c.config.max_model_len = model == "tiny-tales" ? 2048 : 400;
      c.rounds = model == "tiny-tales" ? 1 : 2;
      c.preemptions = 1;
    });
    add("budget_of_16", [](Case& c) { c.config.max_num_batched_tokens = 16; });
    add("prefix_cache_off", [](Case& c) { c.config.enable_prefix_caching = false; });
    add("step_ahead_off", [](Case& c) { c.config.async_scheduling = false; });
    add("one_thread", [](Case& c) { c.config.threads = 1; });
    for (const int64_t rows : {1, 3})
      add("at_most_" + std::to_string(rows), [&](Case& c) { c.config.max_num_seqs = rows; });
    if (!has_cuda_driver()) continue;  // the rest is the same on a CPU
    add("eager", [](Case& c) { c.config.enforce_eager = true; });
    // A batch above the largest graph's 512 rows.
    add("crowd", [&](Case& c) {
      c.config.max_num_seqs = 700;
      c.config.kv_cache_memory_bytes = int64_t{2} << 30;
      c.rounds = model == "tiny-tales" ? 16 : 110;
    });
  }
#if defined(__SANITIZE_THREAD__)
  // It would be a hundred times slower there, and other sizes do not change how threads interact.
  std::erase_if(all, [](const Case& c) {
    return c.model == "tiny-tales" && !c.name.ends_with("_batch") &&
           !c.name.ends_with("_step_ahead_off");
  });
#endif
  return all;
}

class Goldens : public ::testing::TestWithParam<Case> {};

TEST_P(Goldens, Float32GivesTheReferenceTokens) {
  const Case& c = GetParam();
  LLMEngine engine = LLMEngine::load(model_folder(c.model), c.config);
  std::map<uint64_t, Json> rows;
  std::map<uint64_t, RequestOutput> outputs;
  const auto run = [&] {
    while (!engine.is_finished())
      for (const RequestUpdate& update : engine.step())
        if (update.finished) outputs[update.request_id] = *update.finished;
  };
  for (int64_t round = 0; round < c.rounds; ++round)
    for (const Json& row : goldens(c.model)) {
      rows[engine.add_request(row["prompt_token_ids"].get<std::vector<int32_t>>(), greedy())] = row;
      if (c.alone) run();
    }
  run();
  EXPECT_GE(engine.stats().preemptions, c.preemptions);
  EXPECT_EQ(engine.stats().num_free_blocks, engine.stats().num_blocks);
  int64_t num_compared = 0;
  for (const auto& [id, row] : rows) {
    if (row.value("tie", false)) continue;  // the reference's best two logits are within 1e-3
    const RequestOutput& output = outputs[id];
    EXPECT_EQ(output.token_ids, row["greedy_token_ids"].get<std::vector<int32_t>>()) << row["id"];
    EXPECT_EQ(output.finish_reason, row["finish_reason"]) << row["id"];
    EXPECT_TRUE(!row.contains("text") || output.text == row["text"]) << row["id"] << output.text;
    ++num_compared;
  }
  EXPECT_GE(num_compared, c.model == "tiny-tales" ? 39 : 6);
}

INSTANTIATE_TEST_SUITE_P(Models, Goldens, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

class Logprobs : public ::testing::TestWithParam<std::string> {};

TEST_P(Logprobs, OfPromptAndFirstTokenAreTheReferences) {
  const double tolerance = GetParam() == "tiny-tales" ? 1e-4 : 5e-4;
  for (const int64_t budget : {2048, 24}) {
    EngineConfig config = float32();
    config.max_num_batched_tokens = budget;
    config.max_num_seqs = 20;  // prompts need more rows of logits than that
    LLM llm(model_folder(GetParam()), config);
    std::vector<std::vector<int32_t>> prompts;
    const std::vector<Json> rows = goldens(GetParam());
    for (const Json& row : rows)
      prompts.push_back(row["prompt_token_ids"].get<std::vector<int32_t>>());
    SamplingParams params = greedy();
    params.max_tokens = 1;
    params.logprobs = 5;
    params.prompt_logprobs = 1;
    const std::vector<RequestOutput> outputs = llm.generate(prompts, params, false);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Json& expected = rows[i]["prompt_logprobs"];
      ASSERT_EQ(outputs[i].prompt_logprobs.size(), expected.size());
      EXPECT_TRUE(outputs[i].prompt_logprobs[0].empty());
      for (size_t p = 1; p < expected.size(); ++p) {
        ASSERT_EQ(outputs[i].prompt_logprobs[p].size(), 2u);
        EXPECT_EQ(outputs[i].prompt_logprobs[p][0].id, prompts[i][p]);
        ASSERT_NEAR(outputs[i].prompt_logprobs[p][0].logprob, expected[p].get<double>(), tolerance)
            << rows[i]["id"] << " at " << p;
      }
      const TokenLogprobs& first = outputs[i].logprobs.at(0);
      ASSERT_EQ(first.size(), 6u);
      for (size_t k = 0; k < 5; ++k)
        EXPECT_NEAR(first[k + 1].logprob, rows[i]["first_logprobs_top5"][k][1].get<double>(),
                    tolerance);
      EXPECT_EQ(first[0].id, first[1].id);
      EXPECT_EQ(first[0].rank, 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Logprobs, ::testing::ValuesIn(kModels), [](const auto& info) {
  std::string name = info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

// The limits for quantized keys and values, those of an emulation in PyTorch.
constexpr Bfloat16Limits kFp8Cache = {.mean = 0.0418, .agreement = 0.969, .gap = 0.53};

TEST(Bfloat16, IsAsCloseToFloat32AsTransformers) {
  LLM llm(kTinyTales, {.dtype = "bfloat16", .kv_cache_memory_bytes = 64 << 20});
  expect_close_in_bfloat16(llm, goldens("tiny-tales"), {});
}

TEST(Bfloat16, IsAsCloseOverTwoRanks) {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = "bfloat16";
  config.kv_cache_memory_bytes = 64 << 20;
  config.tensor_parallel_size = 2;
  config.worker_path = NANOVLLM_BINARY;
  LLM llm(kTinyTales, config);
  expect_close_in_bfloat16(llm, goldens("tiny-tales"), {});
  config.kv_cache_dtype = "fp8";
  LLM fp8(kTinyTales, config);
  expect_close_in_bfloat16(fp8, goldens("tiny-tales"), kFp8Cache);
}

TEST(Fp8Cache, IsAsCloseAsItsEmulation) {
  for (const char* dtype : {"bfloat16", "float16", "float32"}) {
    SCOPED_TRACE(dtype);
    LLM llm(kTinyTales,
            {.dtype = dtype, .kv_cache_memory_bytes = 64 << 20, .kv_cache_dtype = "fp8"});
    expect_close_in_bfloat16(llm, goldens("tiny-tales"), kFp8Cache);
  }
}

// Every key is quantized before anything reads it, so the answers do not depend on how the steps
// are divided, on what other sequences computed, or on copies of blocks.
TEST(Fp8Cache, GivesTheSameTokensHoweverTheyAreComputed) {
  EngineConfig config = float32();
  config.kv_cache_dtype = "fp8";
  config.device = "cpu";  // where the bits of a row do not depend on its batch
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& row : goldens("tiny-tales"))
    if (row["prompt_token_ids"].size() < 700)
      prompts.push_back(row["prompt_token_ids"].get<std::vector<int32_t>>());
  SamplingParams params = greedy();
  params.max_tokens = 24;
  const auto answers = [&](const EngineConfig& options) {
    LLM llm(kTinyTales, options);
    std::vector<std::vector<int32_t>> ids;
    for (const RequestOutput& output : llm.generate(prompts, params, false)) {
      for (const CompletionOutput& choice : output.outputs) ids.push_back(choice.token_ids);
    }
    return ids;
  };
  const auto want = answers(config);
  EngineConfig other = config;
  other.block_size = 16;
  other.max_num_batched_tokens = 24;
  other.enable_prefix_caching = false;
  EXPECT_EQ(answers(other), want) << "in small steps";
  other = config;
  other.block_size = 16;
  other.num_gpu_blocks_override = 64;
  other.max_model_len = 1024;
  EXPECT_EQ(answers(other), want) << "with preemptions";
  params.n = 3;  // greedy choices are alike, and they share the prompt's blocks
  auto choices = answers(config);
  ASSERT_EQ(choices.size(), 3 * want.size());
  for (size_t i = 0; i < choices.size(); ++i) EXPECT_EQ(choices[i], want[i / 3]);
}

TEST(Float32Weights, GiveTheReferenceTokens) {
  const TempFolder folder;
  write_wider_float32(model_folder("llama"), folder, 5);
  LLM llm(folder.path(), float32());
  for (const Json& row : goldens("llama"))
    if (!row.value("tie", false)) {
      EXPECT_EQ(generate_one(llm, row["prompt_token_ids"].get<std::vector<int32_t>>(), greedy())
                    .token_ids,
                row["greedy_token_ids"].get<std::vector<int32_t>>());
    }
}

TEST(Stories260k, GivesTheReferenceIds) {
  const std::string folder = kSource + "/../shared/data/stories260k";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "third-party data is missing: " << folder;
  const Json golden = json_file(folder + "/golden_greedy.json");
  LLM llm(folder, {.dtype = "float32"});
  SamplingParams params = greedy();
  const std::vector<int32_t> ids = golden["greedy_ids"].get<std::vector<int32_t>>();
  params.max_tokens = static_cast<int64_t>(ids.size());
  EXPECT_EQ(generate_one(llm, golden["prompt_ids"].get<std::vector<int32_t>>(), params).token_ids,
            ids);
}

// The block table has a column for the last token that max_model_len allows.
TEST(Limits, LongestSequencesDecodeTheirLastToken) {
  std::vector<int32_t> text =
      goldens("tiny-tales")[0]["prompt_token_ids"].get<std::vector<int32_t>>();
  while (text.size() < 256) text.insert(text.end(), text.begin(), text.end());
  for (const int64_t longest : {128, 129, 192}) {
    EngineConfig config = float32();
    LLM roomy(kTinyTales, config);
    config.max_model_len = longest;
    LLM tight(kTinyTales, config);
    for (const int64_t answer : {1, 2, 3}) {
      const std::vector<int32_t> prompt(text.begin(), text.begin() + longest - answer);
      SamplingParams params = greedy();
      params.ignore_eos = true;
      params.max_tokens = answer;
      const RequestOutput expected = generate_one(roomy, prompt, params);
      params.max_tokens = 100;
      const RequestOutput output = generate_one(tight, prompt, params);
      EXPECT_EQ(output.token_ids, expected.token_ids) << longest << " " << answer;
      EXPECT_EQ(output.finish_reason, "length");
    }
  }
}

}  // namespace
}  // namespace nanovllm::testing
