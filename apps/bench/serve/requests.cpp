#include "apps/bench/serve/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <random>

#include "apps/batch/line_stream.h"
#include "apps/batch/prompt_line.h"
#include "apps/bench/nano_vllm.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/params/sampling_json.h"
#include "nanovllm/server/http/json_text.h"

namespace nanovllm {

namespace {

constexpr const char* kCompletionsPath = "/v1/completions";
constexpr const char* kChatPath = "/v1/chat/completions";
constexpr int64_t kRandomPrompts = 1000;
constexpr int64_t kTokensOfHash = 512;  // tokens of a block whose hash a trace has

/// Calls on_line(text, number) for each line of a file that is not blank, until it returns false.
template <class OnLine>
void for_lines(const std::string& path, OnLine on_line) {
  LineStream stream(path);
  for (int64_t number = 1; !stream.at_end();) {
    const std::optional<std::string> line = stream.next(/*wait_ms=*/100);
    if (!line) continue;
    if (!is_blank(*line) && !on_line(*line, number)) return;
    ++number;
  }
}

/// The arrivals of a Poisson process.
std::vector<double> random_arrivals(size_t n, const ServeTraffic& traffic) {
  std::vector<double> arrivals(n);
  if (traffic.request_rate <= 0) return arrivals;
  std::mt19937_64 random(traffic.seed);
  double now = 0;
  for (double& arrival : arrivals) {
    arrival = now;
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // less than 1
    now += -std::log1p(-uniform) / traffic.request_rate;
  }
  return arrivals;
}

// -- prompts files

class FileRequests : public ServeRequests {
 public:
  FileRequests(const ServeTraffic& traffic, const std::string& model) {
    const bool own = traffic.dataset.empty();
    const auto take = [&](const std::string& text, int64_t number) {
      const std::string where = fmt::format("{}: line {}", traffic.dataset, number);
      const Json json = parse_json(text, where);
      require(json.is_object(), "{}: must be a JSON object", where);
      PromptLine line;
      line.read(json, where);
      if (own)
        for (Json& id : line.request["prompt_token_ids"])
          id = id.get<int64_t>() % traffic.vocab_size;
      requests_.push_back(request_of(line, model));
      return traffic.num_prompts == 0 || std::ssize(requests_) < traffic.num_prompts;
    };
    if (own) {
      for (const std::string& line : nano_vllm_requests())
        if (!take(line, std::ssize(requests_) + 1)) break;
    } else {
      for_lines(traffic.dataset, take);
    }
    require(!requests_.empty(), "{}: contains no prompts", traffic.dataset);
    arrivals_ = random_arrivals(requests_.size(), traffic);
  }
  ServeRequest request(size_t i) const override { return requests_[i]; }

 private:
  /// Makes the request of a line. Lengths and a temperature that the line does not have are those
  /// of
  /// `bench throughput`.
  static ServeRequest request_of(PromptLine& line, const std::string& model) {
    const SamplingParams defaults;
    Json body = {{"model", model},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}},
                 {"max_tokens", defaults.max_tokens},
                 {"temperature", defaults.temperature}};
    const bool chat = line.request.contains("messages");
    for (const auto& [name, value] : line.request.items()) {
      if (name == "enable_thinking") body["chat_template_kwargs"][name] = value;
      else if (name == "chat_template_kwargs") body[name].update(value);
      else body[name == "prompt_token_ids" ? "prompt" : name] = value;
    }
    for (const auto& [name, value] : line.sampling.items()) {
      body[name] = value;
      if (name != "logprobs" || !chat) continue;
      body[name] = true;
      body["top_logprobs"] = value;
    }
    return {chat ? kChatPath : kCompletionsPath, dump_json(body)};
  }

  std::vector<ServeRequest> requests_;
};

// -- random prompts and traces

/// The lengths of a request, and the numbers of its prompt's blocks if they are known: equal
/// numbers mean equal tokens.
struct Lengths {
  int64_t input = 0, output = 0;
  std::vector<int64_t> hashes = {};
};

class RandomRequests : public ServeRequests {
 public:
  RandomRequests(const ServeTraffic& traffic, std::string model, int64_t max_model_len)
      : traffic_(traffic), model_(std::move(model)) {
    if (traffic.trace.empty()) {
      const int64_t n = traffic.num_prompts > 0 ? traffic.num_prompts : kRandomPrompts;
      requests_.resize(static_cast<size_t>(n),
                       {traffic.random_input_len, traffic.random_output_len});
      arrivals_ = random_arrivals(requests_.size(), traffic);
      return;
    }
    for_lines(traffic.trace, [&](const std::string& line, int64_t number) {
      const std::string where = fmt::format("{}: line {}", traffic.trace, number);
      // The first line may have the names of the columns; a time begins with a digit.
      const bool has_names = number == 1 && line.find(',') != std::string::npos &&
                             (line.front() < '0' || line.front() > '9');
      if (line.starts_with('{')) read_json(line, where);
      else if (!has_names) read_csv(line, where);
      return traffic.num_prompts == 0 || std::ssize(requests_) < traffic.num_prompts;
    });
    require(!requests_.empty(), "{}: contains no requests", traffic.trace);
    require(std::ranges::is_sorted(arrivals_), "{}: the arrivals are not in order", traffic.trace);
    const double first = arrivals_.front();
    for (double& arrival : arrivals_) arrival = (arrival - first) / traffic.speed;
    if (max_model_len > 1) cut(max_model_len);
  }

  ServeRequest request(size_t i) const override {
    const Lengths& lengths = requests_[i];
    std::vector<int32_t> prompt;
    prompt.reserve(static_cast<size_t>(lengths.input));
    for (const int64_t hash : lengths.hashes)
      append_random(prompt, std::min(kTokensOfHash, lengths.input - std::ssize(prompt)), "block",
                    hash);
    append_random(prompt, lengths.input - std::ssize(prompt), "request", static_cast<int64_t>(i));
    std::string body = R"({"model":)";
    append_json_string(body, model_);
    body += R"(,"prompt":)";
    server::append_ids(body, prompt);
    body += fmt::format(
        R"(,"max_tokens":{},"temperature":0,"ignore_eos":true,"stream":true,"stream_options":{{"include_usage":true}}}})",
        lengths.output);
    return {kCompletionsPath, body};
  }

 private:
  void append_random(std::vector<int32_t>& to, int64_t n, std::string_view what,
                     int64_t number) const {
    std::seed_seq seeds{traffic_.seed, static_cast<uint64_t>(what.front()),
                        static_cast<uint64_t>(number)};
    std::mt19937 random(seeds);
    for (int64_t i = 0; i < n; ++i)
      to.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(traffic_.vocab_size)));
  }

  /// Reads a line {"timestamp": milliseconds, "input_length", "output_length", "hash_ids"}.
  void read_json(const std::string& text, const std::string& where) {
    const Json line = parse_json(text, where);
    const auto number = [&](const char* name) {
      const auto at = line.find(name);
      require(at != line.end() && at->is_number() && at->get<double>() >= 0,
              "{}: {} must be a number", where, name);
      return at->get<double>();
    };
    arrivals_.push_back(number("timestamp") / 1000);
    add(number("input_length"), number("output_length"));
    const auto hashes = line.find("hash_ids");
    if (hashes == line.end()) return;
    const auto is_integer = [](const Json& hash) { return hash.is_number_integer(); };
    require(hashes->is_array() && std::ranges::all_of(*hashes, is_integer),
            "{}: hash_ids must be a list of whole numbers", where);
    requests_.back().hashes = hashes->get<std::vector<int64_t>>();
    // A block that was cut short is the beginning of the whole block.
    const auto most = static_cast<size_t>(requests_.back().input / kTokensOfHash + 1);
    if (requests_.back().hashes.size() > most) requests_.back().hashes.resize(most);
  }

  /// Reads a line such as 2023-11-16 18:17:03.9799600,4808,10: time, input and output length.
  void read_csv(const std::string& line, const std::string& where) {
    int year = 0, month = 0, day = 0, hours = 0, minutes = 0;
    double seconds = 0;
    long long input = 0, output = 0;
    const int n = std::sscanf(line.c_str(), "%d-%d-%d %d:%d:%lf,%lld,%lld", &year, &month, &day,
                              &hours, &minutes, &seconds, &input, &output);
    require(n == 8 && input >= 0 && output >= 0,
            "{}: must be YYYY-MM-DD HH:MM:SS,ContextTokens,GeneratedTokens", where);
    const std::chrono::sys_days date = std::chrono::year(year) / month / day;
    const double days = static_cast<double>(date.time_since_epoch().count());
    arrivals_.push_back(((days * 24 + hours) * 60 + minutes) * 60 + seconds);
    add(static_cast<double>(input), static_cast<double>(output));
  }

  void add(double input, double output) {
    constexpr double kMost = 1e9;
    requests_.push_back({static_cast<int64_t>(std::clamp(input, 1.0, kMost)),
                         static_cast<int64_t>(std::clamp(output, 1.0, kMost))});
  }

  /// Cuts requests so that a prompt and its answer fit. An answer keeps at most half of the
  /// context.
  void cut(int64_t max_model_len) {
    for (Lengths& lengths : requests_) {
      if (lengths.input + lengths.output <= max_model_len) continue;
      ++num_cut_;
      const int64_t shortest = std::max(max_model_len / 2, max_model_len - lengths.input);
      lengths.output = std::min(lengths.output, shortest);
      lengths.input = std::min(lengths.input, max_model_len - lengths.output);
    }
  }

  const ServeTraffic traffic_;
  const std::string model_;
  std::vector<Lengths> requests_;
};

}  // namespace

std::unique_ptr<ServeRequests> ServeRequests::make(const ServeTraffic& traffic,
                                                   const std::string& model,
                                                   int64_t max_model_len) {
  if (traffic.random_input_len > 0 || !traffic.trace.empty())
    return std::make_unique<RandomRequests>(traffic, model, max_model_len);
  return std::make_unique<FileRequests>(traffic, model);
}

}  // namespace nanovllm
