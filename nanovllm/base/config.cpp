#include "nanovllm/base/config.h"

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

void one_of(const char* field, const std::string& value,
            std::initializer_list<std::string_view> choices) {
  for (const std::string_view choice : choices)
    if (value == choice) return;
  fail("{} is '{}'; it must be one of {}", field, value, fmt::join(choices, ", "));
}

void in_range(const char* field, int64_t value, int64_t least, int64_t most) {
  if (most == std::numeric_limits<int64_t>::max())
    require(value >= least, "{} is {}; it must be at least {}", field, value, least);
  else
    require(value >= least && value <= most, "{} is {}; it must be from {} to {}", field, value,
            least, most);
}

// Written so that NaN fails every test.
void in_range(const char* field, double value, double least, double most) {
  require(value >= least && value <= most, "{} is {}; it must be from {} to {}", field, value,
          least, most);
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
// The sampler computes in float. A larger temperature would be infinite there, and a penalty much
// nearer to 0 would make infinite logits.
constexpr double kMaxFloat = std::numeric_limits<float>::max();
constexpr double kMaxPenalty = 1e6;

}  // namespace

void EngineConfig::validate() const {
  one_of("device", device, {"auto", "cpu", "cuda"});
  one_of("dtype", dtype, {"auto", "bfloat16", "float16", "float32"});
  one_of("load_format", load_format, {"auto", "dummy"});
  in_range("max_model_len", max_model_len, 0, kMaxInt);
  in_range("max_num_seqs", max_num_seqs, 1, 65536);
  in_range("max_num_batched_tokens", max_num_batched_tokens, 0, 1 << 24);
  require(gpu_memory_utilization > 0 && gpu_memory_utilization <= 1,
          "gpu_memory_utilization is {}; it must be above 0 and at most 1", gpu_memory_utilization);
  in_range("kv_cache_memory_bytes", kv_cache_memory_bytes, 0, kNoLimit);
  require(block_size >= 16 && block_size <= 65536 && block_size % 16 == 0,
          "block_size is {}; it must be a multiple of 16, from 16 to 65536", block_size);
  in_range("num_gpu_blocks_override", num_gpu_blocks_override, 0, kMaxInt);
  in_range("tensor_parallel_size", tensor_parallel_size, 1, 64);
  require(step_timeout > 0 && std::isfinite(step_timeout),
          "step_timeout is {}; it must be above 0 seconds", step_timeout);
  in_range("threads", threads, 0, 4096);
}

void SamplingParams::validate() const {
  require(temperature >= 0, "temperature is {}; it must be at least 0", temperature);
  require(temperature <= kMaxFloat, "temperature is {}; it must be at most {:.2g}", temperature,
          kMaxFloat);
  require(top_p > 0 && top_p <= 1, "top_p is {}; it must be above 0 and at most 1", top_p);
  in_range("top_k", top_k, -1, kMaxInt);
  in_range("min_p", min_p, 0.0, 1.0);
  in_range("max_tokens", max_tokens, 1, kMaxInt);
  in_range("min_tokens", min_tokens, 0, kMaxInt);
  require(min_tokens <= max_tokens, "min_tokens is {}; it must be at most max_tokens, {}",
          min_tokens, max_tokens);
  if (logprobs) in_range("logprobs", *logprobs, 0, 20);
  if (prompt_logprobs) in_range("prompt_logprobs", *prompt_logprobs, 0, 20);
  in_range("n", n, 1, 128);
  for (const int32_t id : stop_token_ids)
    require(id >= 0, "stop_token_ids holds {}; an id is at least 0", id);
  for (const std::string& text : stop) require(!text.empty(), "stop holds an empty text");
  in_range("presence_penalty", presence_penalty, -2.0, 2.0);
  in_range("frequency_penalty", frequency_penalty, -2.0, 2.0);
  in_range("repetition_penalty", repetition_penalty, 1 / kMaxPenalty, kMaxPenalty);
  for (const auto& [id, bias] : logit_bias) {
    require(id >= 0, "logit_bias holds {}; an id is at least 0", id);
    in_range("logit_bias", bias, -100.0, 100.0);
  }
  require(!allowed_token_ids || !allowed_token_ids->empty(),
          "allowed_token_ids is empty; it must hold at least one id");
  for (const std::string& word : bad_words) require(!word.empty(), "bad_words holds an empty text");
}

}  // namespace nanovllm
