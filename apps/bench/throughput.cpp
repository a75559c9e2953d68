#include <filesystem>
#include <fstream>
#include <memory>

#include "apps/bench/bench.h"
#include "apps/cli/options.h"
#include "apps/terminal.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/chat_template.h"

namespace nanovllm {

namespace {

struct ThroughputOptions {
  std::string model;
  EngineConfig config;
  std::string dataset;
  int64_t num_prompts = 0;
  bool warmup = false;
  bool json = false;
};

// The file of nano-vLLM's 256 sequences: in the share folder of an installation, or in the source
// tree if the binary was not installed.
std::string default_dataset() {
  namespace fs = std::filesystem;
  std::error_code error;  // a path that cannot be read counts as missing
  const fs::path installed = fs::read_symlink("/proc/self/exe", error).parent_path() /
                             "../share/nanovllm/nanovllm_256.jsonl";
  for (const fs::path& place : {installed, fs::path(NANOVLLM_DATASET)})
    if (fs::exists(place, error)) return place.string();
  fail("nanovllm_256.jsonl is neither {} nor {}: give --dataset FILE", installed.string(),
       NANOVLLM_DATASET);
}

std::vector<Prompt> read_dataset(const ThroughputOptions& options, const LLMEngine& engine) {
  const bool own = options.dataset.empty();
  const std::shared_ptr<const Tokenizer> tokenizer = engine.tokenizer();
  std::optional<ChatTemplate> chat_template;
  if (tokenizer != nullptr && !own) chat_template = ChatTemplate::load(options.model);
  const PromptReader reader{.tokenizer = tokenizer.get(),
                            .chat_template = chat_template,
                            .defaults = {},
                            .system = {},
                            .enable_thinking = {}};
  std::vector<Prompt> prompts = reader.from_file(own ? default_dataset() : options.dataset);
  if (options.num_prompts > 0 && static_cast<size_t>(options.num_prompts) < prompts.size())
    prompts.resize(static_cast<size_t>(options.num_prompts));
  require(!prompts.empty(), "{}: contains no prompts", options.dataset);
  for (Prompt& prompt : prompts) {
    require(prompt.error.empty(), "{}", prompt.error);
    if (!own) continue;
    for (int32_t& id : prompt.token_ids)
      id = static_cast<int32_t>(id % engine.setup().model.vocab_size);
  }
  return prompts;
}

int throughput(const ThroughputOptions& options) {
  require(options.num_prompts >= 0, "--num-prompts is {}; it must be at least 0",
          options.num_prompts);
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

void add_throughput(CLI::App& bench, Command& command) {
  CLI::App* sub =
      bench.add_subcommand("throughput", "Run a set of requests, all submitted at the start");
  auto options = std::make_shared<ThroughputOptions>();
  add_model_argument(*sub, options->model);
  sub->add_option("--dataset", options->dataset,
                  "A prompts file (see generate --help); by default nano-vLLM's 256 sequences")
      ->type_name("FILE")
      ->check(not_empty());
  add_value(*sub, "--num-prompts", options->num_prompts, "Use only the first N prompts; 0: all")
      ->type_name("N")
      ->capture_default_str();
  sub->add_flag("--warmup", options->warmup, "Run the set once before the measurement");
  sub->add_flag("--json", options->json, "Print one JSON object");
  add_engine_options(*sub, options->config);
  sub->footer(std::string(R"(Examples:
  nanovllm bench throughput models/tiny-tales --warmup
  nanovllm bench throughput models/tiny-tales --num-prompts 64 --json
  nanovllm bench throughput models/tiny-tales --dataset prompts.jsonl

The throughput is the number of generated tokens per second of the whole run. --json also prints
requests per second, all tokens per second, steps, preemptions and the prompt tokens that were
found in the prefix cache.
)") + kExitStatusHelp);
  sub->callback([&command, options] { command = [options] { return throughput(*options); }; });
}

}  // namespace nanovllm
