#include "apps/bench/bench.h"

#include <string>

#include "apps/terminal.h"
#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

std::string error_of(const RequestOutput& output) {
  for (const CompletionOutput& choice : output.outputs)
    if (!choice.error.empty()) return choice.error;
  return output.error;
}

}  // namespace

void require_success(const RequestUpdate& update, uint64_t first) {
  if (update.finished)
    require(!update.finished->has_error(), "prompt {} ended with an error: {}",
            update.request_id - first, error_of(*update.finished));
}

int64_t run_all(LLMEngine& engine, const std::vector<Prompt>& prompts, ProgressBar* bar) {
  const EngineStats before = engine.stats();
  uint64_t first = 0;  // the id of the first request
  for (size_t i = 0; i < prompts.size(); ++i) {
    const uint64_t id = engine.add_request(prompts[i].token_ids, prompts[i].params);
    if (i == 0) first = id;
  }
  int64_t num_done = 0, num_tokens = 0;
  while (!engine.is_finished()) {
    for (const RequestUpdate& update : engine.step()) {
      num_tokens += static_cast<int64_t>(update.token_ids.size());
      num_done += update.finished ? 1 : 0;
      require_success(update, first);
    }
    if (InterruptGuard::interrupted()) return -1;
    if (bar == nullptr) continue;
    const EngineStats stats = engine.stats();
    bar->update(num_done, stats.prefill_tokens - before.prefill_tokens,
                stats.decode_tokens - before.decode_tokens);
  }
  return num_tokens;
}

void add_bench(Command program) {
  Command bench = program.add_command(
      "bench", "Measure throughput, latency, sampling options, a cold start or a server");
  bench.require_command();
  bench.footer(
      std::string("Examples:\n"
                  "  nanovllm bench throughput models/tiny-tales\n"
                  "  nanovllm bench latency models/tiny-tales --batch-size 1,8,32\n"
                  "  nanovllm bench sampling models/tiny-tales --num-prompts 64\n"
                  "  nanovllm bench cold models/tiny-tales --num-prompts 8\n"
                  "  nanovllm bench serve --base-url http://127.0.0.1:8000\n"
                  "\n"
                  "'nanovllm bench COMMAND --help' describes a command, with examples.\n") +
      kExitStatusHelp);
  add_throughput(bench);
  add_latency(bench);
  add_sampling(bench);
  add_cold(bench);
  add_serve_bench(bench);
}

}  // namespace nanovllm
