#include <gtest/gtest.h>

#include <map>

#include "goldens.h"
#include "nanovllm/engine/llm_engine.h"
#include "tests/model/model_test_util.h"
#include "thread_ranks.h"

namespace nanovllm::testing {
namespace {

EngineConfig one_thread() {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = "float32";
  config.threads = 1;
  config.block_size = 16;
  config.kv_cache_memory_bytes = 64 << 20;
  return config;
}

/// An engine over `world` ranks on threads.
std::unique_ptr<LLMEngine> engine_of(const std::string& folder, EngineConfig config, int world) {
  const std::unique_ptr<Backend> probe = make_backend(config);
  const EngineSetup setup = resolve_setup(folder, config, *probe);
  return std::make_unique<LLMEngine>(setup, std::make_unique<ThreadRanks>(folder, setup, world),
                                     nullptr);
}

std::map<uint64_t, RequestOutput> run_all(LLMEngine& engine) {
  std::map<uint64_t, RequestOutput> outputs;
  while (!engine.is_finished())
    for (const RequestUpdate& update : engine.step())
      if (update.finished) outputs[update.request_id] = *update.finished;
  return outputs;
}

/// Adds the prompts, with every kind of sampling among them.
void add_requests(LLMEngine& engine, const std::vector<std::vector<int32_t>>& prompts) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    SamplingParams params;
    params.max_tokens = 24;
    params.ignore_eos = true;
    params.temperature = i % 4 == 0 ? 0 : 0.9;
    params.seed = i;
    if (i % 3 == 1) params.top_p = 0.9;
    if (i % 5 == 1) params.top_k = 20;
    if (i % 5 == 2) params.min_p = 0.05;
    if (i % 4 == 3) params.repetition_penalty = 1.3;
    if (i % 6 == 5) params.logit_bias = {{3, 5.0}, {90, -5.0}};
    if (i % 3 == 0) params.logprobs = 3;
    if (i % 7 == 2) params.prompt_logprobs = 2;
    if (i % 8 == 4) params.n = 2;
    engine.add_request(prompts[i], params);
  }
}

void expect_same_outputs(const std::map<uint64_t, RequestOutput>& got,
                         const std::map<uint64_t, RequestOutput>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  const auto expect_close = [](const auto& a, const auto& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t t = 0; t < a.size(); ++t) {
      ASSERT_EQ(a[t].size(), b[t].size());
      for (size_t k = 0; k < a[t].size(); ++k) {
        EXPECT_EQ(a[t][k].id, b[t][k].id);
        EXPECT_EQ(a[t][k].rank, b[t][k].rank);
        EXPECT_NEAR(a[t][k].logprob, b[t][k].logprob, 1e-4);
      }
    }
  };
  for (const auto& [id, request] : expected) {
    const RequestOutput& other = got.at(id);
    EXPECT_EQ(other.token_ids, request.token_ids) << id;
    ASSERT_EQ(other.outputs.size(), request.outputs.size()) << id;
    for (size_t i = 0; i < request.outputs.size(); ++i)
      EXPECT_EQ(other.outputs[i].token_ids, request.outputs[i].token_ids) << id;
    expect_close(other.logprobs, request.logprobs);
    expect_close(other.prompt_logprobs, request.prompt_logprobs);
  }
}

struct SplitModel {
  friend void PrintTo(const SplitModel& c, std::ostream* out) { *out << c.model << " " << c.world; }
  std::string model;
  int world;
};

class TensorParallel : public ::testing::TestWithParam<SplitModel> {};

// 3 divides none of these models' sizes; 4 ranks share their one or two KV heads.
TEST_P(TensorParallel, Float32GivesTheReferenceTokens) {
  const auto& [model, world] = GetParam();
  const auto engine = engine_of(model_folder(model), one_thread(), world);
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.max_tokens = 64;
  std::map<uint64_t, Json> rows;
  for (const Json& row : goldens(model))
    rows[engine->add_request(row["prompt_token_ids"].get<std::vector<int32_t>>(), greedy)] = row;
  auto outputs = run_all(*engine);
  for (const auto& [id, row] : rows) {
    if (row.value("tie", false)) continue;  // the reference's best two logits are within 1e-3
    EXPECT_EQ(outputs[id].token_ids, row["greedy_token_ids"].get<std::vector<int32_t>>())
        << row["id"];
  }
}

TEST_P(TensorParallel, SeededSamplingAndLogprobsAreThoseOfOneRank) {
  const auto& [model, world] = GetParam();
  std::vector<std::vector<int32_t>> prompts;
  for (const Json& row : goldens(model))
    if (row["prompt_token_ids"].size() < 100)
      prompts.push_back(row["prompt_token_ids"].get<std::vector<int32_t>>());
  const auto ranks = engine_of(model_folder(model), one_thread(), world);
  LLMEngine alone = LLMEngine::load(model_folder(model), one_thread());
  add_requests(*ranks, prompts);
  add_requests(alone, prompts);
  expect_same_outputs(run_all(*ranks), run_all(alone));
}

std::vector<SplitModel> split_models() {
  std::vector<SplitModel> all;
  for (const char* model : {"tiny-tales", "llama", "qwen2", "qwen3-sharded", "qwen3-yarn",
                            "qwen3-moe", "qwen3-moe-mixed", "smollm3", "olmo2"})
    for (const int world : {2, 3, 4}) all.push_back({model, world});
#if defined(__SANITIZE_THREAD__)
  // It would be a hundred times slower there, and other sizes do not change how threads interact.
  std::erase_if(all, [](const SplitModel& c) { return c.model == "tiny-tales"; });
#endif
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallel, ::testing::ValuesIn(split_models()),
                         [](const auto& info) {
                           std::string name = info.param.model + std::to_string(info.param.world);
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// A step may only copy blocks or give slots to sequences.
TEST(TensorParallel, StepWithoutRows) {
  const std::string folder = model_folder("llama");
  for (const int world : {1, 2}) {
    EngineConfig config = one_thread();
    const std::unique_ptr<Backend> probe = make_backend(config);
    const EngineSetup setup = resolve_setup(folder, config, *probe);
    ThreadRanks ranks(folder, setup, world);
    std::vector<std::byte> buffer;
    StepArrays arrays;
    for (uint64_t step = 1; step <= 4; ++step) {
      arrays.clear();
      if (step == 2) arrays.copies.push_back({0, 1});
      if (step == 3) {
        arrays.setups.emplace_back();
        arrays.block_updates.push_back({0, 0, 1});
      }
      if (step == 4) {
        arrays.rows.push_back({.slot = 0, .num_tokens = 2});
        arrays.token_ids = {1, 2};
        arrays.outputs.push_back({.sequence = 7, .offset = 1});
      }
      ranks.submit(arrays.write(step, buffer));
      EXPECT_EQ(ranks.wait().values.size(), step == 4 ? 1U : 0U);
    }
  }
}

// Sizes with which the last rank gets fewer columns and tokens than a group of 16.
TEST(TensorParallel, OddSizesOverThreeRanks) {
  Json config = tiny_config();
  config["num_attention_heads"] = 6;
  config["num_key_value_heads"] = 2;
  config["intermediate_size"] = 40;
  config["vocab_size"] = 100;
  for (const char* architecture : {"Qwen3ForCausalLM", "Qwen2ForCausalLM"}) {
    for (const bool tied : {true, false}) {
      config["architectures"] = {architecture};
      config["tie_word_embeddings"] = tied;
      const TempFolder folder;
      folder.write("config.json", config.dump());
      folder.write("model.safetensors", safetensors_file(test_checkpoint(config, "F32")));
      std::vector<std::vector<int32_t>> prompts;
      for (int32_t i = 0; i < 20; ++i) prompts.push_back({i, 99 - i, 50, 3 * i, 7});
      for (const int world : {2, 3}) {
        const auto ranks = engine_of(folder.path(), one_thread(), world);
        LLMEngine alone = LLMEngine::load(folder.path(), one_thread());
        add_requests(*ranks, prompts);
        add_requests(alone, prompts);
        expect_same_outputs(run_all(*ranks), run_all(alone));
      }
    }
  }
}

// Every rank recomputes the whole prefix of a sequence that lost its blocks, not only its last
// token.
TEST(TensorParallel, PreemptedSequencesGiveTheReferenceTokens) {
  EngineConfig config = one_thread();
  config.num_gpu_blocks_override = 26;
  config.max_model_len = 400;
  config.enable_prefix_caching = false;
  const auto engine = engine_of(model_folder("llama"), config, 2);
  SamplingParams greedy;
  greedy.temperature = 0;
  greedy.max_tokens = 64;
  std::map<uint64_t, Json> rows;
  for (int round = 0; round < 2; ++round)
    for (const Json& row : goldens("llama"))
      rows[engine->add_request(row["prompt_token_ids"].get<std::vector<int32_t>>(), greedy)] = row;
  auto outputs = run_all(*engine);
  EXPECT_GE(engine->stats().preemptions, 1);
  for (const auto& [id, row] : rows)
    if (!row.value("tie", false)) {
      EXPECT_EQ(outputs[id].token_ids, row["greedy_token_ids"].get<std::vector<int32_t>>());
    }
}

}  // namespace
}  // namespace nanovllm::testing
