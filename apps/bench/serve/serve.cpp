// `nanovllm bench serve`: a client that measures any server with OpenAI's API as vLLM's does.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "apps/bench/bench.h"
#include "apps/bench/serve/http_client.h"
#include "apps/bench/serve/report.h"
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

struct LoadOptions {
  std::string base_url = "http://127.0.0.1:8000", api_key, model;
  ServeTraffic traffic;
  int64_t max_concurrency = 0;
  bool json = false;
};

void check_load_options(const LoadOptions& options) {
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
  const ServeTraffic defaults;
  require(traffic.random_input_len > 0 || traffic.random_output_len == defaults.random_output_len,
          "--random-output-len needs --random-input-len");
  require(!traffic.trace.empty() || traffic.speed == defaults.speed, "--speed needs --trace");
  require(traffic.dataset.empty() || traffic.vocab_size == defaults.vocab_size,
          "--vocab-size has no effect on the prompts of --dataset");
  require(traffic.trace.empty() || traffic.request_rate == 0,
          "--trace says when requests arrive; use --speed instead of --request-rate");
}

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
std::string error_message(const std::string& text) {
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

/// All clients, in one thread. Each connection sends one request at a time.
class Load {
 public:
  Load(const ServerAddress& address, const LoadOptions& options) : address_(address) {
    most_running_ = options.max_concurrency > 0 ? static_cast<size_t>(options.max_concurrency)
                                                : std::numeric_limits<size_t>::max();
  }

  /// Asks the server for its first model, unless `name` is given, and for the longest context (0:
  /// unknown).
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
        failure = fmt::format("status {}: {}", status, error_message(text));
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
  std::optional<ServeResult> run(const ServeRequests& requests) {
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
  static void rethrow(const std::exception_ptr& failure) {
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
        answer.error = error_message(std::string(event));
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
      answer.error = fmt::format("status {}: {}", status, error_message(refusal));
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
    } catch (const std::exception&) {  // without the usage, the events are counted
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
  ServeResult measured_;
};

int serve(LoadOptions options) {
  check_load_options(options);
  raise_open_files_limit();
  const ServerAddress address = ServerAddress::of(options.base_url, options.api_key);
  const InterruptGuard guard;
  Load load(address, options);
  int64_t max_model_len = 0;
  load.ask_for_model(options.model, max_model_len);
  const std::unique_ptr<ServeRequests> requests =
      ServeRequests::make(options.traffic, options.model, max_model_len);
  std::optional<ServeResult> measured = load.run(*requests);
  if (!measured) return InterruptGuard::exit_status();
  const double rate = options.traffic.request_rate;
  const int64_t concurrency = options.max_concurrency;
  const Json settings = {{"model_id", options.model},
                         {"num_prompts", requests->size()},
                         {"request_rate", rate > 0 ? Json(rate) : Json("inf")},
                         {"max_concurrency", concurrency > 0 ? Json(concurrency) : Json()},
                         {"num_cut", requests->num_cut()}};
  const int64_t failed = measured->failed;
  const std::string first_error = measured->first_error;
  const Json report = serve_report(*std::move(measured), settings);
  print_out(options.json ? dump_json(report) + "\n" : serve_table(report));
  if (failed == 0) return kExitOk;
  print_error(fmt::format("{} of {} requests failed; the first one: {}", failed, requests->size(),
                          first_error));
  return kExitFailure;
}

}  // namespace

void add_serve_bench(Command bench) {
  Command sub = bench.add_command(
      "serve", "Measure a server with OpenAI's API: throughput and latencies of its streams");
  auto options = std::make_shared<LoadOptions>();
  ServeTraffic& traffic = options->traffic;
  sub.add_value("--base-url", options->base_url, "Where the server is")
      .type_name("URL")
      .show_default();
  sub.add_value("--api-key", options->api_key, "The key that the server asks for").type_name("KEY");
  sub.add_value("--model", options->model,
                "The model that requests name; by default the server's first one")
      .type_name("NAME");
  sub.add_file("--dataset", traffic.dataset,
               "A prompts file (see generate --help); by default nano-vLLM's 256 sequences");
  sub.add_file("--trace", traffic.trace,
               "A trace of a service: CSV as Azure's, or JSON lines as Mooncake's");
  sub.add_value("--speed", traffic.speed, "How many times as fast the trace runs")
      .type_name("X")
      .show_default();
  sub.add_value("--random-input-len", traffic.random_input_len,
                "Send prompts of this many random tokens")
      .type_name("TOKENS");
  sub.add_value("--random-output-len", traffic.random_output_len,
                "The length of the answers to random prompts")
      .type_name("TOKENS")
      .show_default();
  sub.add_value("--vocab-size", traffic.vocab_size,
                "Token ids of random prompts and of nano-vLLM's sequences are less than this")
      .type_name("N")
      .show_default();
  sub.add_value("--num-prompts", traffic.num_prompts,
                "Use only the first N prompts; 0: all, or 1,000 random ones")
      .type_name("N")
      .show_default();
  sub.add_value("--request-rate", traffic.request_rate,
                "Requests a second, which arrive at random times; inf or 0: all at once")
      .type_name("R")
      .transform([](std::string& rate) {
        if (rate == "inf") rate = "0";
        return std::string();
      })
      .show_default();
  sub.add_value("--max-concurrency", options->max_concurrency,
                "Requests that are sent at the same time; 0: no limit")
      .type_name("C")
      .show_default();
  sub.add_value("--seed", traffic.seed, "Of the random prompts and arrivals")
      .type_name("N")
      .show_default();
  sub.add_flag("--json", options->json, "Print one JSON object, with vLLM's keys");
  sub.footer(std::string(R"(Examples:
  nanovllm bench serve --base-url http://127.0.0.1:8000
  nanovllm bench serve --random-input-len 512 --request-rate 10
  nanovllm bench serve --trace AzureLLMInferenceTrace_conv.csv --speed 4
  nanovllm bench serve --vocab-size 8192 --max-concurrency 64 --json

Every request is streamed. TTFT is the time from sending a request to its first event, ITL the time
between two events, TPOT the time of a token after the first one, and E2EL the time to the last
event. They are counted as by 'vllm bench serve', and have its names.

Of a trace, the arrivals and lengths are used; the tokens are random. Where a line has hash_ids,
prompts with an equal hash have 512 equal tokens, so that a prefix cache finds them. Requests that
do not fit into the model's context are cut, and counted.
)") + kExitStatusHelp);
  sub.action([options] { return serve(*options); });
}

}  // namespace nanovllm
