#include <fmt/format.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/dataset.h"
#include "apps/cli/options.h"
#include "apps/terminal.h"
#include "nanovllm/runtime/setup.h"

namespace nanovllm {

namespace {

struct SamplingBenchOptions : DatasetOptions {
  bool json = false;
};

/// A sampling option, and a function that sets it in request number `i`.
struct Case {
  std::string name;
  std::function<void(SamplingParams&, size_t i)> apply;
  bool needs_tokenizer = false;
};

/// `count` token ids, spread over the vocabulary.
std::vector<int32_t> some_ids(int64_t count, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count && i < vocab; ++i)
    ids.push_back(static_cast<int32_t>(i * vocab / std::min(count, vocab)));
  return ids;
}

std::vector<Case> cases(int64_t vocab) {
  using P = SamplingParams;
  std::vector<Case> all;
  P::for_each_field([&](const FieldInfo& field, auto member) {
    if constexpr (std::same_as<decltype(member), double P::*>)
      if (const double value = field.typical; value != 0)
        all.push_back(
            {fmt::format("{} {}", field.name, value), [=](P& p, size_t) { p.*member = value; }});
  });
  const std::vector<Case> others = {
      {"top_k 20, top_p 0.95", [](P& p, size_t) { p.top_k = 20, p.top_p = 0.95; }},
      {"1 in 16 with a penalty",
       [](P& p, size_t i) { p.presence_penalty = i % 16 == 0 ? 1 : p.presence_penalty; }},
      {"logprobs 0", [](P& p, size_t) { p.logprobs = 0; }},
      {"logprobs 5", [](P& p, size_t) { p.logprobs = 5; }},
      {"logit_bias of 300 ids",
       [=](P& p, size_t) {
         for (const int32_t id : some_ids(300, vocab)) p.logit_bias[id] = 1;
       }},
      {"allowed_token_ids of 50", [=](P& p, size_t) { p.allowed_token_ids = some_ids(50, vocab); }},
      {"bad_words of 3",
       [](P& p, size_t) {
         p.bad_words = {"cat", "once upon a time", "little girl"};
       },
       true},
      {"min_tokens",
       [=](P& p, size_t) {
         p.stop_token_ids = {static_cast<int32_t>(vocab - 1)};
         p.min_tokens = p.max_tokens;
       }},
  };
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

struct Result {
  std::string name;
  std::optional<double> rate;  ///< generated tokens per second; none: it cannot run
  double share = 0;            ///< rate, relative to that of the plain runs before and after it
};

int sampling(const SamplingBenchOptions& options) {
  LLMEngine engine = LLMEngine::load(options.model, options.config);
  const std::vector<Prompt> prompts = read_dataset(options, engine);
  const InterruptGuard guard;
  // The generated tokens per second of a run; nothing after Ctrl-C.
  const auto rate = [&](const Case& now) -> std::optional<double> {
    std::vector<Prompt> changed = prompts;
    for (size_t i = 0; i < changed.size(); ++i) now.apply(changed[i].params, i);
    engine.reset_prefix_cache();
    const Clock::time_point start = Clock::now();
    const int64_t num_tokens = run_all(engine, changed);
    if (num_tokens < 0) return std::nullopt;
    return static_cast<double>(num_tokens) / seconds_since(start);
  };
  const Case plain = {"plain", [](SamplingParams&, size_t) {}};
  std::optional<double> before = rate(plain);  // this run is also the warm-up
  std::vector<Result> results;
  size_t num_compared = 0;
  before = rate(plain);
  const std::vector<Case> all = cases(engine.setup().model.vocab_size);
  constexpr size_t kBetweenPlainRuns = 3;
  for (size_t i = 0; i < all.size() && before; ++i) {
    Result result{all[i].name, {}};
    if (!all[i].needs_tokenizer || engine.tokenizer() != nullptr) {
      result.rate = rate(all[i]);
      if (!result.rate) return InterruptGuard::exit_status();
    }
    results.push_back(result);
    if (results.size() % kBetweenPlainRuns != 0 && i + 1 < all.size()) continue;
    const std::optional<double> after = rate(plain);
    for (; after && num_compared < results.size(); ++num_compared)
      results[num_compared].share =
          results[num_compared].rate.value_or(0) / ((*before + *after) / 2);
    before = after;
  }
  if (!before) return InterruptGuard::exit_status();
  Json json = Json::array();
  for (const Result& result : results) {
    if (options.json) {
      if (result.rate)
        json.push_back({{"option", result.name},
                        {"output_tokens_per_second", *result.rate},
                        {"share", result.share}});
    } else if (result.rate) {
      print_out(
          fmt::format("{:<26}{:>12.0f} tok/s{:>8.3f}\n", result.name, *result.rate, result.share));
    } else {
      print_out(fmt::format("{:<26} needs a tokenizer\n", result.name));
    }
  }
  if (options.json) print_out(dump_json(json) + "\n");
  return kExitOk;
}

}  // namespace

void add_sampling(Command bench) {
  Command sub = bench.add_command(
      "sampling", "Measure what each sampling option costs, beside temperature alone");
  auto options = std::make_shared<SamplingBenchOptions>();
  add_dataset_options(sub, *options);
  sub.add_flag("--json", options->json, "Print one JSON array");
  sub.footer(std::string(R"(Examples:
  nanovllm bench sampling models/tiny-tales
  nanovllm bench sampling models/tiny-tales --num-prompts 64 --json

Runs the set of requests once for each option, in one process. A line has the generated tokens per
second, and their ratio to those of the unchanged set, which runs first and again after every third
option.
)") + kExitStatusHelp);
  sub.action([options] { return sampling(*options); });
}

}  // namespace nanovllm
