// `nanovllm bench serve`: a client that measures any server with OpenAI's API as vLLM's does.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>

#include "apps/bench/bench.h"
#include "apps/bench/serve/http_client.h"
#include "apps/bench/serve/requests.h"
#include "apps/cli/options.h"
#include "apps/terminal.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/system/file_descriptor.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/progress.h"

namespace nanovllm {

namespace asio = boost::asio;
using server::Task;

namespace {

struct ServeOptions {
  std::string base_url = "http://127.0.0.1:8000", api_key, model;
  ServeTraffic traffic;
  int64_t max_concurrency = 0;
  bool json = false;
};

void check_options(const ServeOptions& options) {
  const ServeTraffic& traffic = options.traffic;
  const auto at_least = [](auto value, auto least, const char* option) {
    require(value >= least, "{} is {}; it must be at least {}", option, value, least);
  };
  at_least(traffic.num_prompts, 0, "--num-prompts");
  at_least(options.max_concurrency, 0, "--max-concurrency");
  at_least(traffic.random_input_len, 0, "--random-input-len");
  at_least(traffic.random_output_len, 1, "--random-output-len");
  at_least(traffic.vocab_size, 1, "--vocab-size");
  at_least(traffic.request_rate, 0.0, "--request-rate");
  require(traffic.vocab_size <= std::numeric_limits<int32_t>::max(), "--vocab-size is too large");
  require(traffic.speed > 0, "--speed is {}; it must be more than 0", traffic.speed);
  const int sources =
      !traffic.dataset.empty() + !traffic.trace.empty() + (traffic.random_input_len > 0 ? 1 : 0);
  require(sources <= 1, "only one of --dataset, --trace and --random-input-len may be given");
  require(traffic.trace.empty() || traffic.request_rate == 0,
          "--trace says when requests arrive; use --speed instead of --request-rate");
}

/// What the requests of a run took, in milliseconds; as vLLM counts it.
struct Measured {
  std::vector<double> ttft, tpot, itl, e2el;
  int64_t completed = 0, failed = 0, input_tokens = 0, output_tokens = 0, num_events = 0;
  size_t num_running = 0, most_running = 0;
  double duration = 0;
  std::string first_error;
};

/// Whether an event has a piece of an answer. In the text of a JSON string every quote has a
/// backslash, so a name in quotes is the name of a member.
bool has_choice(std::string_view event) {
  constexpr std::string_view kName = R"("choices")";
  size_t at = event.find(kName);
  if (at == std::string_view::npos) return false;
  at = event.find_first_not_of(" :", at + kName.size());
  at = at == std::string_view::npos ? at : event.find_first_not_of(" [", at);
  return at != std::string_view::npos && event[at] == '{';
}

/// The message of an error's JSON, or the text itself, shortened.
std::string message_of(const std::string& text) {
  constexpr size_t kMostBytes = 300;
  try {
    const Json json = parse_json(text, "");
    const Json& error = json.contains("error") ? json["error"] : json;
    if (error.is_object() && error.contains("message") && error["message"].is_string())
      return error["message"].get<std::string>();
  } catch (const UserError&) {
  }
  return text.substr(0, kMostBytes);
}

/// The clients, in one thread. Each connection sends one request at a time.
class Load {
 public:
  Load(const ServerAddress& address, const ServeOptions& options) : address_(address) {
    most_running_ = options.max_concurrency > 0 ? static_cast<size_t>(options.max_concurrency)
                                                : std::numeric_limits<size_t>::max();
  }

  /// The first model of /v1/models, unless `name` is given, and the longest context (0: unknown).
  void ask_for_model(std::string& name, int64_t& max_model_len) {
    std::string failure;
    const auto ask = [&]() -> Task<> {
      HttpClient client(io_, address_);
      std::string text;
      int status = 0;
      const HttpClient::OnBody on_body = [&](std::string_view piece) { text += piece; };
      try {
        co_await client.request("GET", "/v1/models", {}, on_body, status);
      } catch (const boost::system::system_error& e) {
        failure = e.code().message();
        co_return;
      }
      if (status != 200) {
        failure = fmt::format("status {}: {}", status, message_of(text));
        co_return;
      }
      const Json models = parse_json(text, "the answer of /v1/models");
      for (const Json& model : models.value("data", Json::array())) {
        const std::string id = model.value("id", "");
        if (name.empty()) name = id;
        const auto longest = model.find("max_model_len");
        if (id == name && longest != model.end() && longest->is_number_integer())
          max_model_len = longest->get<int64_t>();
      }
    };
    run_alone(ask());
    require(failure.empty(), "{}:{} does not answer /v1/models: {}", address_.host, address_.port,
            failure);
    require(!name.empty(), "the server names no model; give --model");
  }

  /// Returns nothing after Ctrl-C.
  std::optional<Measured> run(const ServeRequests& requests) {
    ProgressBar bar("Serving", std::ssize(requests), stderr_is_terminal());
    bool interrupted = false;
    num_left_ = requests.size();
    const Clock::time_point start = Clock::now();
    asio::co_spawn(io_, send_all(requests, start), rethrow);
    asio::co_spawn(io_, watch(bar, interrupted), rethrow);
    io_.restart();
    io_.run();
    if (interrupted) return std::nullopt;
    measured_.duration = std::chrono::duration<double>(end_ - start).count();
    bar.update(measured_.completed + measured_.failed, measured_.input_tokens,
               measured_.num_events);
    return std::move(measured_);
  }

 private:
  static void rethrow(std::exception_ptr failure) {
    if (failure) std::rethrow_exception(failure);
  }

  void run_alone(Task<> task) {
    asio::co_spawn(io_, std::move(task), rethrow);
    io_.restart();
    io_.run();
  }

  Task<> watch(ProgressBar& bar, bool& interrupted) {
    asio::steady_timer timer(io_);
    while (num_left_ > 0) {
      timer.expires_after(std::chrono::milliseconds(100));
      co_await timer.async_wait(asio::use_awaitable);
      interrupted = InterruptGuard::interrupted();
      if (interrupted) io_.stop();
      bar.update(measured_.completed + measured_.failed, measured_.input_tokens,
                 measured_.num_events);
    }
  }

  Task<> send_all(const ServeRequests& requests, Clock::time_point start) {
    asio::steady_timer timer(io_);
    for (size_t i = 0; i < requests.size(); ++i) {
      timer.expires_at(start + std::chrono::duration_cast<Clock::duration>(
                                   std::chrono::duration<double>(requests.arrival(i))));
      co_await timer.async_wait(asio::use_awaitable);
      while (measured_.num_running >= most_running_) {
        server::error_code cancelled;
        freed_.expires_at(Clock::time_point::max());
        co_await freed_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
      }
      measured_.most_running = std::max(measured_.most_running, ++measured_.num_running);
      asio::co_spawn(io_, send(requests.request(i)), rethrow);
    }
  }

  Task<> send(ServeRequest request) {
    std::unique_ptr<HttpClient> client;
    if (!idle_.empty()) {
      client = std::move(idle_.back());
      idle_.pop_back();
    } else {
      client = std::make_unique<HttpClient>(io_, address_);
    }
    EventReader events;
    Answer answer;
    const Clock::time_point start = Clock::now();
    Clock::time_point last = start, now = start;
    const auto on_event = [&](std::string_view event) {
      if (has_choice(event)) {
        const double ms = 1000 * std::chrono::duration<double>(now - last).count();
        if (answer.num_events++ == 0) answer.ttft = ms;
        else answer.itl.push_back(ms);
        last = now;
        ++measured_.num_events;
      } else if (event.find(R"("usage")") != std::string_view::npos) {
        read_usage(event, answer);
      } else if (event.find(R"("error")") != std::string_view::npos) {
        answer.error = message_of(std::string(event));
      }
    };
    std::string refusal;
    int status = 0;
    const HttpClient::OnBody on_body = [&](std::string_view piece) {
      now = Clock::now();
      if (status == 200) events.add(piece, on_event);
      else refusal += piece;
    };
    try {
      co_await client->request("POST", request.path, request.body, on_body, status);
    } catch (const boost::system::system_error& e) {
      answer.error = e.code().message();
    }
    if (status != 0 && status != 200 && answer.error.empty())
      answer.error = fmt::format("status {}: {}", status, message_of(refusal));
    if (answer.error.empty() && answer.num_events == 0) answer.error = "the answer has no events";
    if (answer.error.empty()) idle_.push_back(std::move(client));
    answer.e2el = 1000 * std::chrono::duration<double>(last - start).count();
    add(answer);
    --measured_.num_running;
    if (--num_left_ == 0) end_ = Clock::now();
    freed_.cancel();
  }

  struct Answer {
    std::string error;
    double ttft = 0, e2el = 0;
    std::vector<double> itl;
    int64_t num_events = 0, input_tokens = 0, output_tokens = 0;
  };

  static void read_usage(std::string_view event, Answer& answer) {
    try {
      const Json json = parse_json(event, "");
      const auto usage = json.find("usage");
      if (usage == json.end() || !usage->is_object()) return;
      answer.input_tokens = usage->value("prompt_tokens", answer.input_tokens);
      answer.output_tokens = usage->value("completion_tokens", answer.output_tokens);
    } catch (const std::exception&) {  // then the events are counted
    }
  }

  void add(const Answer& answer) {
    if (!answer.error.empty()) {
      if (measured_.failed++ == 0) measured_.first_error = answer.error;
      return;
    }
    ++measured_.completed;
    measured_.input_tokens += answer.input_tokens;
    const int64_t tokens = answer.output_tokens > 0 ? answer.output_tokens : answer.num_events;
    measured_.output_tokens += tokens;
    measured_.ttft.push_back(answer.ttft);
    measured_.e2el.push_back(answer.e2el);
    measured_.itl.insert(measured_.itl.end(), answer.itl.begin(), answer.itl.end());
    if (tokens > 1)
      measured_.tpot.push_back((answer.e2el - answer.ttft) / static_cast<double>(tokens - 1));
  }

  asio::io_context io_{1};
  const ServerAddress& address_;
  std::vector<std::unique_ptr<HttpClient>> idle_;
  asio::steady_timer freed_{io_};  // cancelled when a request has ended
  size_t most_running_, num_left_ = 0;
  Clock::time_point end_;
  Measured measured_;
};

double mean_of(const std::vector<double>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double std_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return values.empty() ? 0 : std::sqrt(sum / static_cast<double>(values.size()));
}

/// With linear interpolation, as numpy's percentile.
double percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

struct Figure {
  const char *key, *name, *title;
  std::vector<double> Measured::*values;
};
constexpr Figure kFigures[] = {
    {"ttft", "TTFT", "Time to First Token", &Measured::ttft},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &Measured::tpot},
    {"itl", "ITL", "Inter-token Latency", &Measured::itl},
    {"e2el", "E2EL", "End-to-end Latency", &Measured::e2el},
};

Json json_of(const Measured& m, const ServeOptions& options, const ServeRequests& requests) {
  const auto per_second = [&](int64_t count) { return static_cast<double>(count) / m.duration; };
  const double rate = options.traffic.request_rate;
  Json json = {
      {"model_id", options.model},
      {"num_prompts", requests.size()},
      {"request_rate", rate > 0 ? Json(rate) : Json("inf")},
      {"max_concurrency", options.max_concurrency > 0 ? Json(options.max_concurrency) : Json()},
      {"duration", m.duration},
      {"completed", m.completed},
      {"failed", m.failed},
      {"total_input_tokens", m.input_tokens},
      {"total_output_tokens", m.output_tokens},
      {"request_throughput", per_second(m.completed)},
      {"output_throughput", per_second(m.output_tokens)},
      {"total_token_throughput", per_second(m.input_tokens + m.output_tokens)},
      {"max_concurrent_requests", m.most_running},
      {"num_events", m.num_events},
      {"num_cut", requests.num_cut()}};
  for (const Figure& figure : kFigures) {
    const std::vector<double>& values = m.*figure.values;
    const std::string key = std::string(figure.key) + "_ms";
    json["mean_" + key] = mean_of(values);
    json["median_" + key] = percentile(values, 50);
    json["std_" + key] = std_of(values);
    for (const int percent : {90, 99})
      json[fmt::format("p{}_{}", percent, key)] = percentile(values, percent);
  }
  if (m.failed > 0) json["first_error"] = m.first_error;
  return json;
}

std::string report_of(const Json& json) {
  std::string text = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  const auto whole = [&](const char* label, const char* key) {
    text += fmt::format("{:<40} {:<10}\n", label, json[key].get<int64_t>());
  };
  const auto number = [&](const std::string& label, const std::string& key) {
    text += fmt::format("{:<40} {:<10.2f}\n", label, json[key].get<double>());
  };
  whole("Successful requests:", "completed");
  whole("Failed requests:", "failed");
  if (json["num_cut"] != 0) whole("Requests cut to the context:", "num_cut");
  if (!json["max_concurrency"].is_null()) whole("Maximum request concurrency:", "max_concurrency");
  if (json["request_rate"].is_number()) number("Request rate configured (RPS):", "request_rate");
  number("Benchmark duration (s):", "duration");
  whole("Total input tokens:", "total_input_tokens");
  whole("Total generated tokens:", "total_output_tokens");
  number("Request throughput (req/s):", "request_throughput");
  number("Output token throughput (tok/s):", "output_throughput");
  number("Total token throughput (tok/s):", "total_token_throughput");
  for (const Figure& figure : kFigures) {
    text += fmt::format("{:-^50}\n", figure.title);
    for (const char* what : {"mean", "median", "p90", "p99"}) {
      std::string label = what;
      label.front() = static_cast<char>(label.front() - 'a' + 'A');
      number(fmt::format("{} {} (ms):", label, figure.name),
             fmt::format("{}_{}_ms", what, figure.key));
    }
  }
  return text + std::string(50, '=') + "\n";
}

int serve(ServeOptions options) {
  check_options(options);
  raise_open_files_limit();
  const ServerAddress address = ServerAddress::of(options.base_url, options.api_key);
  const InterruptGuard guard;
  Load load(address, options);
  int64_t max_model_len = 0;
  load.ask_for_model(options.model, max_model_len);
  const std::unique_ptr<ServeRequests> requests =
      ServeRequests::make(options.traffic, options.model, max_model_len);
  std::optional<Measured> measured = load.run(*requests);
  if (!measured) return InterruptGuard::exit_status();
  for (const Figure& figure : kFigures) std::ranges::sort((*measured).*figure.values);
  const Json json = json_of(*measured, options, *requests);
  print_out(options.json ? dump_json(json) + "\n" : report_of(json));
  if (measured->failed == 0) return kExitOk;
  print_error(fmt::format("{} of {} requests failed; the first one: {}", measured->failed,
                          requests->size(), measured->first_error));
  return kExitFailure;
}

}  // namespace

void add_serve_bench(CLI::App& bench, Command& command) {
  CLI::App* sub = bench.add_subcommand(
      "serve", "Measure a server with OpenAI's API: throughput and latencies of its streams");
  auto options = std::make_shared<ServeOptions>();
  ServeTraffic& traffic = options->traffic;
  add_value(*sub, "--base-url", options->base_url, "Where the server is")
      ->type_name("URL")
      ->capture_default_str();
  add_value(*sub, "--api-key", options->api_key, "The key that the server asks for")
      ->type_name("KEY");
  add_value(*sub, "--model", options->model,
            "The model that requests name; by default the server's first one")
      ->type_name("NAME");
  sub->add_option("--dataset", traffic.dataset,
                  "A prompts file (see generate --help); by default nano-vLLM's 256 sequences")
      ->type_name("FILE")
      ->check(not_empty());
  sub->add_option("--trace", traffic.trace,
                  "A trace of a service: CSV as Azure's, or JSON lines as Mooncake's")
      ->type_name("FILE")
      ->check(not_empty());
  add_value(*sub, "--speed", traffic.speed, "How many times as fast the trace runs")
      ->type_name("X")
      ->capture_default_str();
  add_value(*sub, "--random-input-len", traffic.random_input_len,
            "Send prompts of this many random tokens")
      ->type_name("TOKENS");
  add_value(*sub, "--random-output-len", traffic.random_output_len,
            "The length of the answers to random prompts")
      ->type_name("TOKENS")
      ->capture_default_str();
  add_value(*sub, "--vocab-size", traffic.vocab_size,
            "Token ids of random prompts and of nano-vLLM's sequences are less than this")
      ->type_name("N")
      ->capture_default_str();
  add_value(*sub, "--num-prompts", traffic.num_prompts,
            "Use only the first N prompts; 0: all, or 1,000 random ones")
      ->type_name("N")
      ->capture_default_str();
  add_value(*sub, "--request-rate", traffic.request_rate,
            "Requests a second, which arrive at random times; 0: all at once")
      ->type_name("R")
      ->capture_default_str();
  add_value(*sub, "--max-concurrency", options->max_concurrency,
            "Requests that are sent at the same time; 0: no limit")
      ->type_name("C")
      ->capture_default_str();
  add_value(*sub, "--seed", traffic.seed, "Of the random prompts and arrivals")
      ->type_name("N")
      ->capture_default_str();
  sub->add_flag("--json", options->json, "Print one JSON object, with vLLM's keys");
  sub->footer(std::string(R"(Examples:
  nanovllm bench serve --base-url http://127.0.0.1:8000
  nanovllm bench serve --random-input-len 512 --random-output-len 128 --request-rate 10
  nanovllm bench serve --trace AzureLLMInferenceTrace_conv.csv --speed 4 --num-prompts 1000
  nanovllm bench serve --vocab-size 8192 --max-concurrency 64 --json   # for models/tiny-tales

Every request is streamed. TTFT is the time from sending a request to its first event, ITL the time
between two events, TPOT the time of a token after the first one, and E2EL the time to the last
event. They are counted as by 'vllm bench serve', and have its names.

Of a trace, the arrivals and lengths are used; the tokens are random. Where a line has hash_ids,
prompts with an equal hash have 512 equal tokens, so that a prefix cache finds them. Requests that
do not fit into the model's context are cut, and counted.
)") + kExitStatusHelp);
  sub->callback([&command, options] { command = [options] { return serve(*options); }; });
}

}  // namespace nanovllm
