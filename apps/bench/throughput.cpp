#include <fmt/format.h>

#include <memory>

#include "apps/bench/dataset.h"
#include "apps/cli/options.h"
#include "apps/terminal.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/runtime/setup.h"

namespace nanovllm {

namespace {

struct ThroughputOptions : DatasetOptions {
  bool warmup = false;
  bool json = false;
};

int throughput(const ThroughputOptions& options) {
  LLMEngine engine = LLMEngine::load(options.model, options.config);
  const std::vector<Prompt> prompts = read_dataset(options, engine);
  const InterruptGuard guard;
  const auto run = [&] {
    ProgressBar bar("Generating", std::ssize(prompts), stderr_is_terminal());
    return run_all(engine, prompts, &bar);
  };
  if (options.warmup) {
    if (run() < 0) return InterruptGuard::exit_status();
    engine.reset_prefix_cache();
  }
  const EngineStats before = engine.stats();
  const Clock::time_point start = Clock::now();
  const int64_t output_tokens = run();
  if (output_tokens < 0) return InterruptGuard::exit_status();
  const double elapsed = seconds_since(start);
  const EngineStats after = engine.stats();
  int64_t prompt_tokens = 0;
  for (const Prompt& prompt : prompts)
    prompt_tokens += static_cast<int64_t>(prompt.token_ids.size());
  if (!options.json) {
    print_out(fmt::format("Total: {}tok, Time: {:.2f}s, Throughput: {:.2f}tok/s\n", output_tokens,
                          elapsed, static_cast<double>(output_tokens) / elapsed));
    return kExitOk;
  }
  const EngineSetup& setup = engine.setup();
  const Json json = {
      {"elapsed_time", elapsed},
      {"num_requests", prompts.size()},
      {"prompt_tokens", prompt_tokens},
      {"output_tokens", output_tokens},
      {"requests_per_second", static_cast<double>(prompts.size()) / elapsed},
      {"output_tokens_per_second", static_cast<double>(output_tokens) / elapsed},
      {"total_tokens_per_second", static_cast<double>(prompt_tokens + output_tokens) / elapsed},
      {"num_preemptions", after.preemptions - before.preemptions},
      {"prefix_cache_hit_tokens", after.prefix_hits - before.prefix_hits},
      {"steps", after.steps - before.steps},
      {"device", setup.config.device},
      {"dtype", dtype_name(setup.dtype)}};
  print_out(dump_json(json) + "\n");
  return kExitOk;
}

}  // namespace

void add_throughput(Command bench) {
  Command sub =
      bench.add_command("throughput", "Run a set of requests, all submitted at the start");
  auto options = std::make_shared<ThroughputOptions>();
  add_dataset_options(sub, *options);
  sub.add_flag("--warmup", options->warmup, "Run the set once before the measurement");
  sub.add_flag("--json", options->json, "Print one JSON object");
  sub.footer(std::string(R"(Examples:
  nanovllm bench throughput models/tiny-tales --warmup
  nanovllm bench throughput models/tiny-tales --num-prompts 64 --json
  nanovllm bench throughput models/tiny-tales --dataset prompts.jsonl

The throughput is the number of generated tokens per second of the whole run. --json also prints
requests per second, all tokens per second, steps, preemptions and the prompt tokens that were
found in the prefix cache.
)") + kExitStatusHelp);
  sub.action([options] { return throughput(*options); });
}

}  // namespace nanovllm
