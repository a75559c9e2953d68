#include "apps/bench/cold_traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "apps/bench/bench.h"
#include "apps/terminal.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/runtime/setup.h"

namespace nanovllm {

namespace {

constexpr double kSlowStepMs = 50;
constexpr int64_t kFirstPromptLen = 32;

/// The figures that are compared between the first and the last round.
constexpr const char* kCompared[] = {"output_tokens_per_second", "longest_step_ms", "ttft_p50_ms",
                                     "ttft_p99_ms"};

Prompt random_prompt(std::mt19937_64& random, int64_t input_len, int64_t output_len,
                     int64_t vocab) {
  Prompt prompt;
  prompt.params.temperature = 0.6;
  prompt.params.ignore_eos = true;
  prompt.params.max_tokens = output_len;
  for (int64_t i = 0; i < input_len; ++i)
    prompt.token_ids.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocab)));
  return prompt;
}

/// The requests of a round.
struct Requests {
  int64_t shortest = 0, longest = 0;  // the shortest and longest prompt or answer, in tokens
  std::vector<Prompt> prompts;
  std::vector<double> arrivals;  // seconds after the start of the round, in order

  Requests(const ColdTraffic& traffic, const EngineSetup& setup) {
    longest = std::min(traffic.max_len, setup.config.max_model_len / 2);
    shortest = std::min<int64_t>(100, longest);
    // Arrivals have a random generator of their own, so that both traffics have the same requests.
    std::mt19937_64 random(0), random_gaps(2);
    const auto length = [&] {
      return shortest +
             static_cast<int64_t>(random() % static_cast<uint64_t>(longest - shortest + 1));
    };
    // The gaps between the arrivals of a Poisson process have an exponential distribution.
    const auto gap = [&] {
      const double uniform = static_cast<double>(random_gaps() >> 11) * 0x1p-53;  // less than 1
      return -std::log1p(-uniform) / traffic.request_rate;
    };
    double arrival = 0;
    for (int64_t i = 0; i < traffic.num_prompts; ++i) {
      const int64_t input_len = length(), output_len = length();
      prompts.push_back(random_prompt(random, input_len, output_len, setup.model.vocab_size));
      arrival += traffic.name == "arriving" ? gap() : 0;
      arrivals.push_back(arrival);
    }
  }
};

/// The nearest-rank percentile: the least value that at least this share of the values do not
/// exceed.
double nearest_rank(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[rank - 1];
}

/// Runs the requests once. Returns nothing after Ctrl-C. The bar counts finished requests.
std::optional<Json> run_round(LLMEngine& engine, const Requests& requests, int64_t& num_done,
                              ProgressBar& bar) {
  constexpr double kLongestSleep = 0.1;  // so that Ctrl-C is noticed
  const size_t n = requests.prompts.size();
  const EngineStats before = engine.stats();
  std::vector<double> first_token_ms(n, -1);  // time from arrival to first token; -1: none yet
  double longest_ms = 0, slow_ms = 0;
  int64_t num_slow = 0, num_tokens = 0;
  uint64_t first = 0;  // the id of the first request
  size_t num_added = 0;
  const Clock::time_point start = Clock::now();
  while (num_added < n || !engine.is_finished()) {
    if (InterruptGuard::interrupted()) return std::nullopt;
    for (; num_added < n && requests.arrivals[num_added] <= seconds_since(start); ++num_added) {
      const Prompt& prompt = requests.prompts[num_added];
      const uint64_t id = engine.add_request(prompt.token_ids, prompt.params);
      if (num_added == 0) first = id;
    }
    if (engine.is_finished()) {
      const double wait = requests.arrivals[num_added] - seconds_since(start);
      std::this_thread::sleep_for(
          std::chrono::duration<double>(std::clamp(wait, 0.0, kLongestSleep)));
      continue;
    }
    const Clock::time_point step_start = Clock::now();
    const std::span<const RequestUpdate> updates = engine.step();
    const double step_ms = 1000 * seconds_since(step_start);
    longest_ms = std::max(longest_ms, step_ms);
    if (step_ms > kSlowStepMs) ++num_slow, slow_ms += step_ms;
    const double now = seconds_since(start);
    for (const RequestUpdate& update : updates) {
      require_success(update, first);
      num_tokens += static_cast<int64_t>(update.token_ids.size());
      num_done += update.finished ? 1 : 0;
      const size_t i = update.request_id - first;
      if (first_token_ms[i] < 0) first_token_ms[i] = 1000 * (now - requests.arrivals[i]);
    }
    const EngineStats stats = engine.stats();
    bar.update(num_done, stats.prefill_tokens, stats.decode_tokens);
  }
  const double elapsed = seconds_since(start);
  std::ranges::sort(first_token_ms);
  return Json{{"elapsed_time", elapsed},
              {"output_tokens", num_tokens},
              {"output_tokens_per_second", static_cast<double>(num_tokens) / elapsed},
              {"steps", engine.stats().steps - before.steps},
              {"longest_step_ms", longest_ms},
              {"slow_steps", num_slow},
              {"slow_steps_ms", slow_ms},
              {"ttft_p50_ms", nearest_rank(first_token_ms, 0.5)},
              {"ttft_p99_ms", nearest_rank(first_token_ms, 0.99)}};
}

}  // namespace

std::optional<Json> measure_cold(const std::string& model, const EngineConfig& config,
                                 const ColdTraffic& traffic) {
  LLMEngine engine = LLMEngine::load(model, config);
  const double ready = seconds_since_process_start();
  const InterruptGuard guard;
  const EngineSetup& setup = engine.setup();
  std::mt19937_64 random(1);
  const int64_t first_len = std::min(kFirstPromptLen, setup.config.max_model_len - 1);
  if (run_all(engine, {random_prompt(random, first_len, 1, setup.model.vocab_size)}) < 0)
    return std::nullopt;
  const double first_token = seconds_since_process_start();

  const Requests requests(traffic, setup);
  Json rounds = Json::array();
  int64_t num_done = 0;
  ProgressBar bar("Measuring " + traffic.name, traffic.num_rounds * traffic.num_prompts,
                  stderr_is_terminal());
  for (int64_t i = 0; i < traffic.num_rounds; ++i) {
    std::optional<Json> round = run_round(engine, requests, num_done, bar);
    if (!round) return std::nullopt;
    rounds.push_back(*std::move(round));
  }
  Json first_to_last;
  for (const char* name : kCompared)
    first_to_last[name] = rounds.front()[name].get<double>() / rounds.back()[name].get<double>();
  return Json{{"traffic", traffic.name},
              {"request_rate", traffic.name == "arriving" ? Json(traffic.request_rate) : Json()},
              {"num_requests", traffic.num_prompts},
              {"shortest_len", requests.shortest},
              {"longest_len", requests.longest},
              {"device", setup.config.device},
              {"dtype", dtype_name(setup.dtype)},
              {"seconds_to_ready", ready},
              {"seconds_to_first_token", first_token},
              {"rounds", rounds},
              {"first_to_last", first_to_last}};
}

std::string cold_table(const Json& result) {
  const auto text = [&](const char* name) { return result[name].get<std::string>(); };
  const auto whole = [&](const char* name) { return result[name].get<int64_t>(); };
  const auto seconds = [&](const char* name) { return result[name].get<double>(); };
  const std::string arrivals =
      result["request_rate"].is_null()
          ? "all at once"
          : fmt::format("arriving at {:g} a second", seconds("request_rate"));
  std::string table = fmt::format("{}: {} request{} of {} to {} tokens in and out\n", arrivals,
                                  whole("num_requests"), whole("num_requests") == 1 ? "" : "s",
                                  whole("shortest_len"), whole("longest_len"));
  table += fmt::format("{} on {}; ready {:.2f} s after the start, first token after {:.2f} s\n",
                       text("dtype"), text("device"), seconds("seconds_to_ready"),
                       seconds("seconds_to_first_token"));
  table += fmt::format("{:14}{:>10}{:>13}{:>20}{:>22}\n", "", "output", "longest",
                       "steps over 50 ms", "first token after");
  table += fmt::format("{:14}{:>10}{:>13}{:>8}{:>12}{:>11}{:>11}\n", "", "tok/s", "step, ms",
                       "number", "sum, ms", "p50, ms", "p99, ms");
  int64_t number = 0;
  for (const Json& round : result["rounds"]) {
    const auto figure = [&](const char* name) { return round[name].get<double>(); };
    table += fmt::format("{:14}{:>10.0f}{:>13.1f}{:>8}{:>12.1f}{:>11.1f}{:>11.1f}\n",
                         fmt::format("round {}", ++number), figure("output_tokens_per_second"),
                         figure("longest_step_ms"), round["slow_steps"].get<int64_t>(),
                         figure("slow_steps_ms"), figure("ttft_p50_ms"), figure("ttft_p99_ms"));
  }
  const auto ratio = [&](const char* name) { return result["first_to_last"][name].get<double>(); };
  return table + fmt::format("{:14}{:>10.3f}{:>13.2f}{:>31.2f}{:>11.2f}\n", "first / last",
                             ratio("output_tokens_per_second"), ratio("longest_step_ms"),
                             ratio("ttft_p50_ms"), ratio("ttft_p99_ms"));
}

}  // namespace nanovllm
