// The numbers of /metrics. tests/serving/metrics_test.py reads the whole text with Prometheus' own
// parser.
#include "nanovllm/server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nanovllm::server {
namespace {

using ::testing::HasSubstr;

EngineSetup setup_of(int64_t max_model_len) {
  EngineSetup setup;
  setup.config.max_model_len = max_model_len;
  setup.config.block_size = 32;
  return setup;
}

EngineStats stats_of(int64_t num_blocks, int64_t num_free) {
  EngineStats stats;
  stats.num_blocks = num_blocks;
  stats.num_free_blocks = num_free;
  return stats;
}

RequestUpdate token(int32_t choice, double time) {
  RequestUpdate update;
  update.choice = choice;
  update.time = time;
  update.token_ids = {1};
  return update;
}

TEST(MetricsOfRequests, TimesAreBetweenTheTokensOfEachAnswer) {
  Metrics metrics("m", setup_of(100));
  RequestProgress progress = {.arrival_time = 10, .num_prompt_tokens = 7};
  metrics.count(progress, token(0, 10.5));
  metrics.count(progress, token(1, 10.5));
  metrics.count(progress, token(0, 10.75));
  metrics.count(progress, token(1, 11.5));
  RequestUpdate last;
  last.finished = std::make_unique<RequestOutput>();
  last.finished->arrival_time = 10;
  last.finished->scheduled_time = 10.25;
  last.finished->first_token_time = 10.5;
  last.finished->finish_time = 12;
  last.finished->outputs.resize(2);
  last.finished->outputs[0].finish_reason = "stop";
  last.finished->outputs[0].token_ids = {1, 1};
  last.finished->outputs[1].finish_reason = "abort";
  last.finished->outputs[1].token_ids = {1, 1};
  metrics.count(progress, last);
  const std::string text = metrics.text(stats_of(8, 6));
  for (const char* line :
       {"vllm:time_to_first_token_seconds_count{model_name=\"m\"} 2\n",
        "vllm:time_to_first_token_seconds_sum{model_name=\"m\"} 1\n",
        "vllm:inter_token_latency_seconds_count{model_name=\"m\"} 2\n",
        "vllm:inter_token_latency_seconds_sum{model_name=\"m\"} 1.25\n",
        "vllm:e2e_request_latency_seconds_sum{model_name=\"m\"} 2\n",
        "vllm:request_queue_time_seconds_sum{model_name=\"m\"} 0.25\n",
        "vllm:request_prefill_time_seconds_sum{model_name=\"m\"} 0.25\n",
        "vllm:request_decode_time_seconds_sum{model_name=\"m\"} 1\n",
        "vllm:request_inference_time_seconds_sum{model_name=\"m\"} 1.25\n",
        "vllm:request_inference_time_seconds_bucket{model_name=\"m\",le=\"1\"} 0\n",
        "vllm:request_inference_time_seconds_bucket{model_name=\"m\",le=\"1.5\"} 1\n",
        "vllm:prompt_tokens_total{model_name=\"m\"} 7\n",
        "vllm:request_prompt_tokens_count{model_name=\"m\"} 1\n",
        "vllm:request_generation_tokens_sum{model_name=\"m\"} 4\n",
        "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1\n",
        "vllm:request_success_total{model_name=\"m\",finished_reason=\"abort\"} 1\n",
        "vllm:request_success_total{model_name=\"m\",finished_reason=\"error\"} 0\n",
        "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.25\n",
        "vllm:cache_config_info{model_name=\"m\",block_size=\"32\",num_gpu_blocks=\"8\"",
        "vllm:request_prompt_tokens_bucket{model_name=\"m\",le=\"100\"} 1\n"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(MetricsOfRequests, ARequestThatNeverRanWaitedUntilItsEnd) {
  Metrics metrics("m", setup_of(100));
  RequestProgress progress = {.arrival_time = 10, .num_prompt_tokens = 7};
  RequestUpdate last;
  last.finished = std::make_unique<RequestOutput>();
  last.finished->arrival_time = 10;
  last.finished->finish_time = 13;
  last.finished->outputs.resize(1);
  last.finished->outputs[0].finish_reason = "abort";
  metrics.count(progress, last);
  const std::string text = metrics.text(stats_of(1, 1));
  EXPECT_THAT(text, HasSubstr("vllm:request_queue_time_seconds_sum{model_name=\"m\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_total{model_name=\"m\"} 0\n"));
  for (const char* phase : {"prefill", "decode", "inference"})
    EXPECT_THAT(text, HasSubstr("vllm:request_" + std::string(phase) +
                                "_time_seconds_count{model_name=\"m\"} 0\n"));
}

TEST(MetricsOfSteps, AreAHistogramOfTheirTokens) {
  EngineStats stats = stats_of(1, 1);
  for (const int64_t tokens : {1, 1, 8, 9, 16384, 16385}) stats.count_step(tokens);
  EXPECT_EQ(stats.steps, 6);
  stats.prefill_tokens = 32770;
  stats.decode_tokens = 18;
  const std::string text = Metrics("m", setup_of(1)).text(stats);
  for (const char* line : {"le=\"1\"} 2\n", "le=\"8\"} 3\n", "le=\"16\"} 4\n", "le=\"8192\"} 4\n",
                           "le=\"16384\"} 5\n", "le=\"+Inf\"} 6\n"})
    EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total_bucket{model_name=\"m\"," +
                                std::string(line)));
  EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total_sum{model_name=\"m\"} 32788\n"));
}

TEST(MetricsOfRequests, NamesOfModelsAreEscaped) {
  EXPECT_THAT(Metrics("a\"b\\c\nd", setup_of(1)).text(stats_of(1, 1)),
              HasSubstr(R"(vllm:num_requests_running{model_name="a\"b\\c\nd"} 0)"));
}

}  // namespace
}  // namespace nanovllm::server
