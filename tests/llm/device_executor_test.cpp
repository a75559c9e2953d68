#include <gtest/gtest.h>

#include <map>

#include "goldens.h"
#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/runtime/model_runner.h"

namespace nanovllm::testing {
namespace {

std::map<uint64_t, RequestOutput> run(LLMEngine& engine) {
  const std::vector<Json> rows = goldens("llama");
  for (size_t i = 0; i < 120; ++i) {
    SamplingParams params;
    params.max_tokens = 30;
    params.ignore_eos = true;
    // Ends that nobody sees coming: a row is in flight when its slot passes on.
    params.stop_token_ids = {12};
    params.allowed_token_ids = {10, 11, 12, 13, 14, 15};  // so tokens come again at once
    params.temperature = i % 2 == 0 ? 0 : 1.5;
    params.seed = i;
    params.presence_penalty = i % 3 == 0 ? 0 : 1.5;  // waits for the token in flight
    if (i % 3 == 1) params.repetition_penalty = 1.8;
    if (i % 4 == 0) params.logprobs = 2;
    if (i % 5 == 0) params.n = 2;
    engine.add_request(rows[i % rows.size()]["prompt_token_ids"].get<std::vector<int32_t>>(),
                       params);
  }
  std::map<uint64_t, RequestOutput> outputs;
  while (!engine.is_finished())
    for (const RequestUpdate& update : engine.step())
      if (update.finished) outputs[update.request_id] = *update.finished;
  return outputs;
}

// As on a GPU: a step is launched before the tokens of the one before it are fetched.
TEST(ModelRunner, LaunchingAheadGivesTheSameAnswers) {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = "float32";
  config.block_size = 16;
  config.max_num_seqs = 5;  // slots pass from sequence to sequence
  config.num_gpu_blocks_override = 40;
  const std::string folder = model_folder("llama");
  std::unique_ptr<Backend> backend = make_backend(config);
  const EngineSetup setup = resolve_setup(folder, config, *backend);
  LLMEngine ahead(setup, std::make_unique<ModelRunner>(folder, setup, std::move(backend)),
                  nullptr);
  LLMEngine plain(folder, config);
  const auto got = run(ahead), expected = run(plain);
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [id, request] : expected) {
    EXPECT_EQ(got.at(id).token_ids, request.token_ids) << id;
    EXPECT_EQ(got.at(id).finish_reason, request.finish_reason) << id;
    ASSERT_EQ(got.at(id).outputs.size(), request.outputs.size()) << id;
    for (size_t i = 0; i < request.outputs.size(); ++i)
      EXPECT_EQ(got.at(id).outputs[i].token_ids, request.outputs[i].token_ids) << id;
    ASSERT_EQ(got.at(id).logprobs.size(), request.logprobs.size()) << id;
    for (size_t i = 0; i < request.logprobs.size(); ++i)
      EXPECT_EQ(got.at(id).logprobs[i].at(0).logprob, request.logprobs[i].at(0).logprob) << id;
  }
  EXPECT_GT(ahead.stats().steps, 0);
}

}  // namespace
}  // namespace nanovllm::testing
