#include "apps/bench/serve/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nanovllm {

namespace {

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

/// The percentile with linear interpolation, as numpy computes it.
double percentile(const std::vector<double>& sorted, double percent) {
  if (sorted.empty()) return 0;
  const double at = percent / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - static_cast<double>(below));
}

struct Figure {
  const char *key, *name, *title;
  std::vector<double> ServeResult::*values;
};
constexpr Figure kFigures[] = {
    {"ttft", "TTFT", "Time to First Token", &ServeResult::ttft},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)", &ServeResult::tpot},
    {"itl", "ITL", "Inter-token Latency", &ServeResult::itl},
    {"e2el", "E2EL", "End-to-end Latency", &ServeResult::e2el},
};

}  // namespace

Json serve_report(ServeResult m, const Json& settings) {
  for (const Figure& figure : kFigures) std::ranges::sort(m.*figure.values);
  const auto per_second = [&](int64_t count) { return static_cast<double>(count) / m.duration; };
  Json json = settings;
  json.update({{"duration", m.duration},
               {"completed", m.completed},
               {"failed", m.failed},
               {"total_input_tokens", m.input_tokens},
               {"total_output_tokens", m.output_tokens},
               {"request_throughput", per_second(m.completed)},
               {"output_throughput", per_second(m.output_tokens)},
               {"total_token_throughput", per_second(m.input_tokens + m.output_tokens)},
               {"max_concurrent_requests", m.most_running},
               {"num_events", m.num_events}});
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

std::string serve_table(const Json& json) {
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

}  // namespace nanovllm
