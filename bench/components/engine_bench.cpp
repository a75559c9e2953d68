// Measures the host's work for one step of many decoding sequences, without a device: scheduling,
// building the batch and postprocessing.
//   engine_bench [SEQUENCES] [STEPS]   512 and 2000 by default
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "nanovllm/engine/batch_builder.h"
#include "nanovllm/engine/scheduler.h"

int main(int argc, char** argv) {
  using namespace nanovllm;
  using Clock = std::chrono::steady_clock;
  const int64_t num_seqs = argc > 1 ? std::atoll(argv[1]) : 512;
  const int64_t num_steps = argc > 2 ? std::atoll(argv[2]) : 2000;
  constexpr int64_t kPromptLen = 500, kBlockSize = 64;
  const int64_t max_model_len = kPromptLen + num_steps + 100;
  CacheManager cache(BlockPool(num_seqs * (max_model_len / kBlockSize + 1), kBlockSize, true));
  EngineConfig config;
  config.max_num_seqs = num_seqs;
  config.max_num_batched_tokens = num_seqs * kPromptLen;
  config.max_model_len = max_model_len;
  Scheduler scheduler(config, cache);
  BatchBuilder builder(/*vocab_size=*/32000);

  const auto params =
      std::make_shared<const RequestParams>(RequestParams{.given = {}, .stop_ids = {-1}});
  for (int64_t i = 0; i < num_seqs; ++i) {
    std::vector<std::unique_ptr<Sequence>> choices;
    choices.push_back(std::make_unique<Sequence>());
    Sequence& seq = *choices.back();
    seq.id = static_cast<uint64_t>(i);
    seq.params = params;
    seq.max_tokens = max_model_len;
    for (int64_t t = 0; t < kPromptLen; ++t)
      seq.token_ids.push_back(static_cast<int32_t>(i * 7919 + t));
    seq.num_prompt_tokens = kPromptLen;
    scheduler.add(std::move(choices));
  }

  // The scheduler runs one step ahead, as in the engine: it schedules and builds step k + 1 before
  // it postprocesses step k.
  struct Step {
    StepPlan plan;
    StepOutput output;
  } steps[2];
  std::vector<SequenceUpdate> updates;
  std::vector<double> micros;
  size_t bytes = 0;
  for (int64_t k = 0; k < num_steps; ++k) {
    const auto start = Clock::now();
    Step& next = steps[k % 2];
    scheduler.schedule(next.plan);
    const StepInput input = builder.build(next.plan);
    const auto built = Clock::now();
    bytes = std::max(bytes, k < 10 ? 0 : input.bytes().size());
    next.output.clear();
    for (const OutputInput& output : input.outputs)
      next.output.values.push_back({.sequence = output.sequence, .token_id = 5});
    const auto resumed = Clock::now();
    if (k > 0) scheduler.postprocess(steps[(k + 1) % 2].plan, steps[(k + 1) % 2].output, updates);
    const std::chrono::duration<double, std::micro> spent =
        (built - start) + (Clock::now() - resumed);
    if (k >= 10) micros.push_back(spent.count());
  }
  std::ranges::sort(micros);
  std::printf(
      "%ld sequences decoding, %zu steps: median %.1f us a step, 99%% %.1f us; largest input %zu "
      "bytes\n",
      num_seqs, micros.size(), micros[micros.size() / 2], micros[micros.size() * 99 / 100], bytes);
}
