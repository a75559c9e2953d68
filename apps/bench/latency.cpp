#include <algorithm>
#include <limits>
#include <memory>
#include <random>

#include "apps/bench/bench.h"
#include "apps/bench/latency_table.h"
#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "apps/terminal.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/hub/hub.h"
#include "nanovllm/runtime/setup.h"

namespace nanovllm {

namespace {

// The largest batch: the upper limit of max_num_seqs, because the whole batch must run at once.
constexpr int64_t kMaxBatchSize = 65536;

struct LatencyOptions {
  std::string model;
  EngineConfig config;
  std::vector<int64_t> batch_sizes = {1};
  std::vector<int64_t> input_lens = {128};
  std::vector<int64_t> output_lens = {128};
  int64_t num_iters = 5;
  std::string format = "table";
};

/// Reads whole numbers that are separated by commas. Returns what is wrong with them, or an empty
/// text.
std::string read_list(const std::string& list, std::vector<int64_t>& numbers) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  numbers.clear();
  for (size_t begin = 0, end = 0; begin <= list.size(); begin = end + 1) {
    end = std::min(list.find(',', begin), list.size());
    std::string number = list.substr(begin, end - begin);
    if (std::string error = whole_number(-kMost, kMost)(number); !error.empty()) return error;
    numbers.push_back(std::stoll(number));
  }
  return {};
}

void check_sizes(const LatencyOptions& options) {
  const auto at_least_1 = [](const std::vector<int64_t>& sizes, const char* option) {
    for (const int64_t size : sizes)
      require(size >= 1, "{} is {}; it must be at least 1", option, size);
  };
  at_least_1(options.batch_sizes, "--batch-size");
  at_least_1(options.input_lens, "--input-len");
  at_least_1(options.output_lens, "--output-len");
  at_least_1({options.num_iters}, "--num-iters");
  const int64_t batch = std::ranges::max(options.batch_sizes);
  require(batch <= kMaxBatchSize, "--batch-size is {}; it must be at most {}", batch,
          kMaxBatchSize);
}

/// All combinations of the sizes.
std::vector<LatencyResult> combinations(const LatencyOptions& options) {
  std::vector<LatencyResult> all;
  for (const int64_t batch_size : options.batch_sizes)
    for (const int64_t input_len : options.input_lens)
      for (const int64_t output_len : options.output_lens)
        all.push_back({batch_size, input_len, output_len, {}, {}, {}});
  return all;
}

/// Checks that the sequences of a batch can run at the same time. If they did not, the first tokens
/// of some would come after the last tokens of others, and the difference of two runs would not be
/// the time of the decode steps.
void check_fit(const LatencyResult& r, const EngineSetup& setup) {
  const EngineConfig& config = setup.config;
  const int64_t longest = config.max_model_len;
  require(r.input_len <= longest && r.output_len <= longest - r.input_len,
          "--input-len {} and --output-len {} together exceed max_model_len {}", r.input_len,
          r.output_len, longest);
  if (r.output_len == 1) return;  // there are no decode steps
  require(r.batch_size <= config.max_num_seqs,
          "--batch-size is {}, and at most {} may run at the same time; raise --max-num-seqs",
          r.batch_size, config.max_num_seqs);
  const int64_t len = r.input_len + r.output_len;
  const int64_t num_blocks = r.batch_size * ((len + config.block_size - 1) / config.block_size);
  require(
      num_blocks <= setup.num_blocks,
      "{} sequences of {} tokens need {} KV-cache blocks, and there are {}; raise {}", r.batch_size,
      len, num_blocks, setup.num_blocks,
      config.num_gpu_blocks_override > 0 ? "--num-gpu-blocks-override" : "--kv-cache-memory-bytes");
}

int latency(const LatencyOptions& options) {
  check_sizes(options);
  LLMEngine engine = LLMEngine::load(options.model, options.config);
  const EngineSetup& setup = engine.setup();
  std::vector<LatencyResult> results = combinations(options);
  for (const LatencyResult& r : results) check_fit(r, setup);
  std::mt19937_64 random(0);
  // Seconds that a batch of new random prompts takes to generate output_len tokens each; negative
  // after Ctrl-C.
  const auto timed = [&](const LatencyResult& r, int64_t output_len) {
    std::vector<Prompt> prompts(static_cast<size_t>(r.batch_size));
    for (Prompt& prompt : prompts) {
      prompt.params.temperature = 0.6;
      prompt.params.ignore_eos = true;
      prompt.params.max_tokens = output_len;
      for (int64_t i = 0; i < r.input_len; ++i)
        prompt.token_ids.push_back(
            static_cast<int32_t>(random() % static_cast<uint64_t>(setup.model.vocab_size)));
    }
    // The blocks of the previous run become free, so that this run uses memory that exists already.
    engine.reset_prefix_cache();
    const Clock::time_point start = Clock::now();
    return run_all(engine, prompts) < 0 ? -1.0 : seconds_since(start);
  };
  const InterruptGuard guard;
  if (options.format == "table")
    print_out(fmt::format("{} in {} on {}: medians of {} runs\n", hub::shown_name(options.model),
                          dtype_name(setup.dtype), setup.config.device, options.num_iters));
  print_out(latency_header(options.format));
  ProgressBar bar("Measuring", std::ssize(results) * options.num_iters, stderr_is_terminal());
  int64_t num_done = 0;
  for (LatencyResult& r : results) {
    std::vector<double> first, all, decode_ms;
    // The warm-up allocates buffers and raises the clocks.
    timed(r, std::min<int64_t>(r.output_len, 2));
    for (int64_t i = 0; i < options.num_iters && !InterruptGuard::interrupted(); ++i) {
      first.push_back(timed(r, 1));
      all.push_back(timed(r, r.output_len));
      const double steps = static_cast<double>(r.output_len - 1);
      decode_ms.push_back(steps > 0 ? 1000 * (all.back() - first.back()) / steps : 0);
      const EngineStats stats = engine.stats();
      bar.update(++num_done, stats.prefill_tokens, stats.decode_tokens);
    }
    if (InterruptGuard::interrupted()) return InterruptGuard::exit_status();
    r.prefill_s = Spread::of(first);
    r.decode_ms_per_step = Spread::of(decode_ms);
    r.total_s = Spread::of(all);
    bar.hide();
    print_out(latency_line(options.format, r));
  }
  return kExitOk;
}

}  // namespace

void add_latency(Command bench) {
  Command sub = bench.add_command("latency", "Run batches of requests of equal length");
  auto options = std::make_shared<LatencyOptions>();
  add_model_argument(sub, options->model);
  const auto add_list = [&](const std::string& name, std::vector<int64_t>& sizes, const char* type,
                            const char* text) {
    const auto read = [&sizes](const std::vector<std::string>& lists) {
      return read_list(lists.back(), sizes);  // the last one counts
    };
    sub.add_function(name, read, text).type_name(type).default_text(std::to_string(sizes[0]));
  };
  add_list("--batch-size", options->batch_sizes, "N[,N...]", "Numbers of sequences");
  add_list("--input-len", options->input_lens, "TOKENS[,TOKENS...]", "Lengths of the prompts");
  add_list("--output-len", options->output_lens, "TOKENS[,TOKENS...]", "Lengths of the answers");
  sub.add_value("--num-iters", options->num_iters,
                "Measured runs of each combination, after one for warming up")
      .type_name("N")
      .show_default();
  const Option format =
      sub.add_choice("--format", options->format, "table|csv|markdown|json", "How to print it");
  sub.add_flag(
         "--json", [options] { options->format = "json"; }, "The same as --format json")
      .excludes(format);
  add_engine_options(sub, options->config);
  sub.remove_option("--logprobs-mode");
  sub.footer(std::string(R"(Examples:
  nanovllm bench latency models/tiny-tales
  nanovllm bench latency models/tiny-tales --batch-size 1,8,32 --format csv
  nanovllm bench latency FOLDER --load-format dummy   # needs only config.json

Each combination of the sizes is one line. 'prefill' is the time until the last sequence has its
first token, 'decode' the time of each later step. The figures are medians of the runs; the table
also shows the smallest and the largest. With --json, each combination is one JSON object. Every
run uses new random prompts, so that the prefix cache is not used, with temperature 0.6, and end
tokens are ignored.
)") + kExitStatusHelp);
  sub.action([options] { return latency(*options); });
}

}  // namespace nanovllm
