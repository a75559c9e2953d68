#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>

#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/progress.h"
#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/chat_template.h"
#include "options.h"
#include "prompts.h"
#include "terminal.h"

namespace nanovllm {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

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

std::string error_of(const RequestOutput& output) {
  for (const CompletionOutput& choice : output.outputs)
    if (!choice.error.empty()) return choice.error;
  return output.error;
}

/// Runs all prompts to their end. Returns the number of generated tokens, or -1 after Ctrl-C.
/// Throws UserError if one of the prompts ends with an error.
int64_t run_all(LLMEngine& engine, const std::vector<Prompt>& prompts, bool show_progress) {
  const EngineStats before = engine.stats();
  uint64_t first = 0;  // request
  for (size_t i = 0; i < prompts.size(); ++i) {
    const uint64_t id = engine.add_request(prompts[i].token_ids, prompts[i].params);
    if (i == 0) first = id;
  }
  ProgressBar bar("Generating", static_cast<int64_t>(prompts.size()),
                  show_progress && stderr_is_terminal());
  int64_t num_done = 0, num_tokens = 0;
  while (!engine.is_finished()) {
    for (const RequestUpdate& update : engine.step()) {
      num_tokens += static_cast<int64_t>(update.token_ids.size());
      if (!update.finished) continue;
      ++num_done;
      // The tokens of a failed prompt are missing, so the figures would describe less work.
      require(!update.finished->has_error(), "prompt {} ended with an error: {}",
              update.request_id - first, error_of(*update.finished));
    }
    if (InterruptGuard::interrupted()) return -1;
    const EngineStats stats = engine.stats();
    bar.update(num_done, stats.prefill_tokens - before.prefill_tokens,
               stats.decode_tokens - before.decode_tokens);
  }
  return num_tokens;
}

int throughput(const ThroughputOptions& options) {
  require(options.num_prompts >= 0, "--num-prompts is {}; it must be at least 0",
          options.num_prompts);
  LLMEngine engine = LLMEngine::load(options.model, options.config);
  const std::vector<Prompt> prompts = read_dataset(options, engine);
  const InterruptGuard guard;
  if (options.warmup) {
    if (run_all(engine, prompts, true) < 0) return InterruptGuard::exit_status();
    engine.reset_prefix_cache();
  }
  const EngineStats before = engine.stats();
  const Clock::time_point start = Clock::now();
  const int64_t output_tokens = run_all(engine, prompts, true);
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

// The upper limit of max_num_seqs, because the whole batch must run at the same time.
constexpr int64_t kMaxBatchSize = 65536;

struct LatencyOptions {
  std::string model;
  EngineConfig config;
  int64_t batch_size = 1;
  int64_t input_len = 128;
  int64_t output_len = 128;
  int64_t num_iters = 5;
  bool json = false;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

int latency(const LatencyOptions& options) {
  require(options.batch_size >= 1 && options.input_len >= 1 && options.output_len >= 1 &&
              options.num_iters >= 1,
          "--batch-size, --input-len, --output-len and --num-iters must be at least 1");
  require(options.batch_size <= kMaxBatchSize, "--batch-size is {}; it must be at most {}",
          options.batch_size, kMaxBatchSize);
  LLMEngine engine = LLMEngine::load(options.model, options.config);
  const int64_t longest = engine.setup().config.max_model_len;
  require(options.input_len <= longest && options.output_len <= longest - options.input_len,
          "--input-len {} and --output-len {} together exceed max_model_len {}", options.input_len,
          options.output_len, longest);
  std::mt19937_64 random(0);
  // Seconds that a batch of new random prompts takes to generate output_len tokens each; negative
  // after Ctrl-C.
  const auto timed = [&](int64_t output_len) {
    std::vector<Prompt> prompts(static_cast<size_t>(options.batch_size));
    for (Prompt& prompt : prompts) {
      prompt.params.temperature = 0.6;
      prompt.params.ignore_eos = true;
      prompt.params.max_tokens = output_len;
      for (int64_t i = 0; i < options.input_len; ++i)
        prompt.token_ids.push_back(static_cast<int32_t>(
            random() % static_cast<uint64_t>(engine.setup().model.vocab_size)));
    }
    const Clock::time_point start = Clock::now();
    return run_all(engine, prompts, false) < 0 ? -1.0 : seconds_since(start);
  };
  const InterruptGuard guard;
  std::vector<double> first, all;
  // The warm-up allocates buffers, creates oneDNN's primitives and raises the clocks.
  timed(std::min<int64_t>(options.output_len, 2));
  for (int64_t i = 0; i < options.num_iters && !InterruptGuard::interrupted(); ++i) {
    first.push_back(timed(1));
    all.push_back(timed(options.output_len));
  }
  if (InterruptGuard::interrupted()) return InterruptGuard::exit_status();
  const double prefill = median(first), total = median(all);
  const auto batch = static_cast<double>(options.batch_size);
  const double steps = static_cast<double>(options.output_len - 1);
  const double decode_ms = steps > 0 ? 1000 * (total - prefill) / steps : 0;
  const double prefill_rate = batch * static_cast<double>(options.input_len) / prefill;
  const double output_rate = batch * static_cast<double>(options.output_len) / total;
  if (options.json) {
    const Json json = {
        {"batch_size", options.batch_size},        {"input_len", options.input_len},
        {"output_len", options.output_len},        {"prefill_s", prefill},
        {"decode_ms_per_step", decode_ms},         {"prefill_tokens_per_second", prefill_rate},
        {"output_tokens_per_second", output_rate}, {"total_s", total}};
    print_out(dump_json(json) + "\n");
  } else {
    print_out(fmt::format(
        "Batch {}, {} tokens in, {} out: prefill {:.4f}s ({:.1f}tok/s), decode {:.3f}ms a "
        "step, total {:.3f}s ({:.1f}tok/s)\n",
        options.batch_size, options.input_len, options.output_len, prefill, prefill_rate, decode_ms,
        total, output_rate));
  }
  return kExitOk;
}

}  // namespace

void add_bench(CLI::App& app, Command& command) {
  CLI::App* bench = app.add_subcommand("bench", "Measure throughput or latency");
  bench->require_subcommand(1);

  CLI::App* sub =
      bench->add_subcommand("throughput", "Run a set of requests, all submitted at the start");
  auto t = std::make_shared<ThroughputOptions>();
  add_model_argument(*sub, t->model);
  sub->add_option("--dataset", t->dataset,
                  "A prompts file (see generate --help); the default is nano-vLLM's 256 sequences")
      ->type_name("FILE");
  add_value(*sub, "--num-prompts", t->num_prompts, "Use only the first N prompts; 0: all")
      ->type_name("N")
      ->capture_default_str();
  sub->add_flag("--warmup", t->warmup, "Run the set once before the measurement");
  sub->add_flag("--json", t->json, "Print one JSON object");
  add_engine_options(*sub, t->config);
  sub->footer(
      std::string("Examples:\n"
                  "  nanovllm bench throughput models/tiny-tales --warmup\n"
                  "  nanovllm bench throughput models/tiny-tales --num-prompts 64 --json\n"
                  "  nanovllm bench throughput models/tiny-tales --dataset prompts.jsonl\n"
                  "The throughput is the number of generated tokens per second of the whole run. "
                  "--json also prints\n"
                  "requests per second, all tokens per second, steps, preemptions and the prompt "
                  "tokens that were\n"
                  "found in the prefix cache.\n") +
      kExitStatusHelp);
  sub->callback([&command, t] { command = [t] { return throughput(*t); }; });

  sub =
      bench->add_subcommand("latency", "Run one batch of requests of equal length; prints medians");
  auto l = std::make_shared<LatencyOptions>();
  add_model_argument(*sub, l->model);
  const auto add = [&](const char* name, int64_t& value, const char* type, const char* text) {
    add_value(*sub, name, value, text)->type_name(type)->capture_default_str();
  };
  add("--batch-size", l->batch_size, "N", "Number of sequences");
  add("--input-len", l->input_len, "TOKENS", "Length of each prompt");
  add("--output-len", l->output_len, "TOKENS", "Length of each answer");
  add("--num-iters", l->num_iters, "N", "Measured runs; one more run before them is the warm-up");
  sub->add_flag("--json", l->json, "Print one JSON object");
  add_engine_options(*sub, l->config);
  sub->footer(
      std::string(
          "Examples:\n"
          "  nanovllm bench latency models/tiny-tales\n"
          "  nanovllm bench latency models/tiny-tales --batch-size 8 --output-len 64 --json\n"
          "  nanovllm bench latency FOLDER --load-format dummy   (a config.json is enough)\n"
          "'prefill' is the time in seconds until the last sequence has its first token, 'decode' "
          "the time in\n"
          "milliseconds of each later step. Every run uses new random prompts, so that the prefix "
          "cache is not\n"
          "used, with temperature 0.6, and end tokens are ignored.\n") +
      kExitStatusHelp);
  sub->callback([&command, l] { command = [l] { return latency(*l); }; });
}

}  // namespace nanovllm
