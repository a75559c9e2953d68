#include "nanovllm/server/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <concepts>
#include <initializer_list>
#include <limits>
#include <sstream>
#include <utility>

namespace nanovllm::server {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Buckets = prometheus::Histogram::BucketBoundaries;
using Labels = std::vector<ClientMetric::Label>;

const Buckets kFirstTokenSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                    0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                    20,    40,    80,   160,  640,  2560};
const Buckets kInterTokenSeconds = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                    0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const Buckets kRequestSeconds = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

/// The buckets 1, 2, 5, 10, 20, 50 and so on, up to the context length.
Buckets token_buckets(int64_t max_model_len) {
  Buckets buckets;
  for (int64_t decade = 1;; decade *= 10)
    for (const int64_t digit : {1, 2, 5}) {
      if (digit * decade > max_model_len) return buckets;
      buckets.push_back(static_cast<double>(digit * decade));
    }
}

/// Builds the families of a page. Every metric has the label model_name.
class Page {
 public:
  explicit Page(const std::string& model_name) : model_name_(model_name) {}

  void gauge(const char* name, const char* help, double value, Labels labels = {}) {
    add(name, help, MetricType::Gauge, std::move(labels)).gauge.value = value;
  }
  void counter(const char* name, const char* help, std::convertible_to<double> auto value,
               Labels labels = {}) {
    add(name, help, MetricType::Counter, std::move(labels)).counter.value =
        static_cast<double>(value);
  }
  void histogram(const char* name, const char* help, const ClientMetric& collected) {
    add(name, help, MetricType::Histogram).histogram = collected.histogram;
  }
  std::string text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, families_);
    return std::move(out).str();
  }

 private:
  /// Metrics of the same name follow each other and become one family.
  ClientMetric& add(const char* name, const char* help, MetricType type, Labels labels = {}) {
    if (families_.empty() || families_.back().name != name)
      families_.push_back({name, help, type, {}});
    ClientMetric& metric = families_.back().metric.emplace_back();
    metric.label = {{"model_name", model_name_}};
    std::ranges::move(labels, std::back_inserter(metric.label));
    return metric;
  }

  const std::string& model_name_;
  std::vector<MetricFamily> families_;
};

/// The engine's counts of steps as a histogram of the tokens of a step.
ClientMetric step_histogram(const SchedulerStats& stats) {
  ClientMetric metric;
  uint64_t count = 0;
  for (size_t i = 0; i < stats.steps_of_size.size(); ++i) {
    count += static_cast<uint64_t>(stats.steps_of_size[i]);
    metric.histogram.bucket.push_back({count, i < stats.kStepSizes.size()
                                                  ? static_cast<double>(stats.kStepSizes[i])
                                                  : std::numeric_limits<double>::infinity()});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = static_cast<double>(stats.prefill_tokens + stats.decode_tokens);
  return metric;
}

}  // namespace

Metrics::Metrics(std::string model_name, const EngineSetup& setup)
    : model_name_(std::move(model_name)),
      block_size_(setup.config.block_size),
      has_prefix_cache_(setup.config.enable_prefix_caching),
      first_token_(kFirstTokenSeconds),
      inter_token_(kInterTokenSeconds),
      end_to_end_(kRequestSeconds),
      queue_(kRequestSeconds),
      prefill_(kRequestSeconds),
      decode_(kRequestSeconds),
      inference_(kRequestSeconds),
      prompt_tokens_(token_buckets(setup.config.max_model_len)),
      generation_tokens_(token_buckets(setup.config.max_model_len)) {
  // Every reason is shown from the start, because Prometheus needs a first value for a rate.
  for (const char* reason : {"stop", "length", "abort", "error"}) num_ended_[reason] = 0;
}

void Metrics::count(RequestProgress& progress, const RequestUpdate& update) {
  if (!update.token_ids.empty()) {
    auto& times = progress.token_times;
    const auto choice = static_cast<size_t>(update.choice);
    if (times.empty()) num_prompt_tokens_ += progress.num_prompt_tokens;
    if (choice >= times.size()) times.resize(choice + 1);
    const double before = std::exchange(times[choice], update.time);
    if (before == 0) first_token_.Observe(update.time - progress.arrival_time);
    else inter_token_.Observe(update.time - before);
  }
  if (!update.finished) return;
  const RequestOutput& output = *update.finished;
  for (const CompletionOutput& answer : output.outputs) {
    ++num_ended_[answer.finish_reason];
    generation_tokens_.Observe(static_cast<double>(answer.token_ids.size()));
  }
  prompt_tokens_.Observe(static_cast<double>(progress.num_prompt_tokens));
  end_to_end_.Observe(output.finish_time - output.arrival_time);
  const double left_queue = output.scheduled_time > 0 ? output.scheduled_time : output.finish_time;
  queue_.Observe(left_queue - output.arrival_time);
  // A request that has ended before its first token belongs to none of these phases.
  if (output.first_token_time == 0 || progress.token_times.empty()) return;
  const double last_token = std::ranges::max(progress.token_times);
  prefill_.Observe(output.first_token_time - left_queue);
  decode_.Observe(last_token - output.first_token_time);
  inference_.Observe(last_token - left_queue);
}

std::string Metrics::text(const EngineStats& stats) const {
  Page page(model_name_);
  page.gauge("vllm:num_requests_running", "Sequences that are computed.",
             static_cast<double>(stats.num_running));
  page.gauge("vllm:num_requests_waiting", "Sequences that wait to be computed.",
             static_cast<double>(stats.num_waiting));
  page.gauge("vllm:kv_cache_usage_perc",
             "Share of the blocks of the KV cache that sequences hold, from 0 to 1.",
             static_cast<double>(stats.num_blocks - stats.num_free_blocks) /
                 static_cast<double>(stats.num_blocks));
  page.counter("vllm:prompt_tokens_total", "Tokens of the prompts that were computed or cached.",
               num_prompt_tokens_);
  page.counter("vllm:generation_tokens_total", "Tokens that were generated.",
               stats.generated_tokens);
  page.counter("vllm:num_preemptions_total", "How often a sequence lost its blocks to another one.",
               stats.preemptions);
  page.counter("nanovllm:mask_seconds_total",
               "Seconds in which the engine found what the forms of answers allow.",
               stats.mask_seconds);
  page.counter("nanovllm:compile_seconds_total", "Seconds in which forms of answers were compiled.",
               stats.compile_seconds);
  page.counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.",
               stats.prefix_queries);
  page.counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.",
               stats.prefix_hits);
  for (const auto& [reason, number] : num_ended_)
    page.counter("vllm:request_success_total", "Answers that have ended, by the reason.", number,
                 {{"finished_reason", reason}});
  page.histogram("vllm:time_to_first_token_seconds",
                 "Seconds from the arrival of a request to the first token of an answer.",
                 first_token_.Collect());
  page.histogram("vllm:inter_token_latency_seconds", "Seconds between two tokens of an answer.",
                 inter_token_.Collect());
  page.histogram("vllm:e2e_request_latency_seconds",
                 "Seconds from the arrival of a request to its end.", end_to_end_.Collect());
  page.histogram("vllm:request_queue_time_seconds",
                 "Seconds from the arrival of a request to its first step.", queue_.Collect());
  page.histogram("vllm:request_prefill_time_seconds",
                 "Seconds from the first step of a request to its first token.",
                 prefill_.Collect());
  page.histogram("vllm:request_decode_time_seconds",
                 "Seconds from the first token of a request to its last one.", decode_.Collect());
  page.histogram("vllm:request_inference_time_seconds",
                 "Seconds from the first step of a request to its last token.",
                 inference_.Collect());
  page.histogram("vllm:request_prompt_tokens", "Tokens of a request's prompt.",
                 prompt_tokens_.Collect());
  page.histogram("vllm:request_generation_tokens", "Tokens of an answer.",
                 generation_tokens_.Collect());
  page.histogram("vllm:iteration_tokens_total", "Tokens that a step computes.",
                 step_histogram(stats));
  page.gauge("vllm:cache_config_info", "Settings of the KV cache; always 1.", 1,
             {{"block_size", std::to_string(block_size_)},
              {"num_gpu_blocks", std::to_string(stats.num_blocks)},
              {"enable_prefix_caching", has_prefix_cache_ ? "True" : "False"}});
  return page.text();
}

}  // namespace nanovllm::server
