#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fake_executor.h"
#include "nanovllm/engine/llm_engine.h"

namespace nanovllm::testing {

/// An engine with the fake model, small by default: 16 blocks of 4 tokens.
struct TestEngine {
  struct Options {
    int64_t num_blocks = 16, block_size = 4, max_num_seqs = 4, max_num_batched_tokens = 64;
    int64_t max_model_len = 40;
    std::optional<int64_t> num_snapshots = {};  ///< none: the model has no recurrent state
    bool async_scheduling = true, enable_prefix_caching = true;
    FakeModel model = {.vocab_size = 1000};
    std::vector<int32_t> eos_token_ids = {};
    std::string trace = {};
  };

  explicit TestEngine(const Options& o) : options(o) {
    EngineSetup setup;
    setup.config.max_model_len = o.max_model_len;
    setup.config.max_num_seqs = o.max_num_seqs;
    setup.config.max_num_batched_tokens = o.max_num_batched_tokens;
    setup.config.block_size = o.block_size;
    setup.config.enable_prefix_caching = o.enable_prefix_caching;
    setup.config.async_scheduling = o.async_scheduling;
    setup.config.seed = 0;
    setup.num_blocks = o.num_blocks;
    setup.num_snapshots = o.num_snapshots;
    setup.model.vocab_size = o.model.vocab_size;
    setup.model.eos_token_ids = o.eos_token_ids;
    auto executor = std::make_unique<FakeExecutor>(o.model, o.max_num_seqs, o.num_blocks,
                                                   o.block_size, o.max_model_len, o.num_snapshots);
    fake = executor.get();
    engine =
        std::make_unique<LLMEngine>(setup, std::move(executor), nullptr,
                                    o.trace.empty() ? nullptr : std::make_unique<Trace>(o.trace));
  }

  uint64_t add(const std::vector<int32_t>& prompt, int64_t max_tokens, int64_t n = 1) {
    SamplingParams params;
    params.max_tokens = max_tokens;
    params.seed = 7;
    params.n = n;
    return engine->add_request(prompt, params);
  }

  /// Runs one step. Requests that ended in it are added to `outputs`.
  void step() {
    for (const RequestUpdate& update : engine->step())
      if (update.finished) outputs[update.request_id] = *update.finished;
  }
  /// Runs steps until the engine is finished. Returns their number.
  int64_t run(int64_t most = 10'000) {
    int64_t steps = 0;
    for (; !engine->is_finished() && steps < most; ++steps) step();
    return steps;
  }
  int64_t num_free() const { return engine->stats().num_free_blocks; }

  /// The model's answer to a prompt that runs alone.
  std::vector<int32_t> alone(const std::vector<int32_t>& prompt, int64_t num_tokens,
                             int32_t choice = 0) const {
    uint64_t chain = 0;
    for (const int32_t token : prompt) chain = FakeModel::extend(chain, token);
    std::vector<int32_t> tokens;
    while (static_cast<int64_t>(tokens.size()) < num_tokens) {
      tokens.push_back(options.model.draw(chain, 7, choice));
      chain = FakeModel::extend(chain, tokens.back());
    }
    return tokens;
  }

  Options options;
  FakeExecutor* fake = nullptr;
  std::unique_ptr<LLMEngine> engine;
  std::map<uint64_t, RequestOutput> outputs;
};

/// Token ids that depend on `family` and position.
inline std::vector<int32_t> made_prompt(int64_t length, int32_t family = 1) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back(
        static_cast<int32_t>(mix(static_cast<uint64_t>(family), static_cast<uint64_t>(i)) % 900));
  return ids;
}

}  // namespace nanovllm::testing
