#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace nanovllm {

/// How the engine is set up, with vLLM's names and meanings. Zero or empty means "chosen at start".
struct __attribute__((visibility("default"))) EngineConfig {
  std::string device = "auto";  ///< auto, cpu, cuda
  std::string dtype =
      "auto";  ///< auto (the checkpoint's, float32 becoming bfloat16), bfloat16, float16, float32
  std::string load_format =
      "auto";                 ///< auto (safetensors), dummy (random weights from config.json alone)
  int64_t max_model_len = 0;  ///< tokens of prompt and answer together
  int64_t max_num_seqs = 512;          ///< sequences that run at the same time
  int64_t max_num_batched_tokens = 0;  ///< tokens computed in one step
  double gpu_memory_utilization = 0.9;
  int64_t kv_cache_memory_bytes = 0;
  int64_t block_size = 64;              ///< tokens in a block of the KV cache, a multiple of 16
  int64_t num_gpu_blocks_override = 0;  ///< blocks of the KV cache, on the CPU too
  bool enforce_eager = false;
  bool enable_prefix_caching = true;
  bool async_scheduling = true;  ///< schedule one step ahead of the device
  int64_t tensor_parallel_size = 1;
  double step_timeout = 60;  ///< seconds without progress after which a step counts as hung
  int64_t threads = 0;  ///< of the CPU backend, all ranks together; 0: all cores that this process
                        ///< may use
  std::optional<uint64_t> seed =
      std::nullopt;              ///< of requests that bring none; random unless given
  std::string worker_path = {};  ///< the nanovllm binary that worker ranks run; by default this
                                 ///< program if it is that, else the one beside the library

  /// Throws UserError that names the field, its value and what would be right.
  void validate() const;
};

/// The max_tokens of an answer that only the context limits.
constexpr int64_t kNoMaxTokens = std::numeric_limits<int32_t>::max();

/// How one request is sampled, with vLLM's names and meanings. Greedy is temperature 0 (below
/// 1e-5).
struct __attribute__((visibility("default"))) SamplingParams {
  double temperature = 1.0;  ///< at most what a float holds
  double top_p = 1.0;  ///< the smallest set of best tokens whose probability reaches it; 1: off
  int64_t top_k = 0;   ///< 0 or -1: off
  double min_p = 0.0;  ///< least probability, as a share of the best token's
  int64_t max_tokens = 64;  ///< kNoMaxTokens: as many as the context leaves
  int64_t min_tokens = 0;   ///< end tokens and stop_token_ids cannot be drawn before
  bool ignore_eos = false;
  std::vector<std::string> stop = {};  ///< texts that end the answer and are not part of it
  std::vector<int32_t> stop_token_ids = {};
  double presence_penalty = 0.0;    ///< taken from the logits of tokens that the answer holds
  double frequency_penalty = 0.0;   ///< the same for each time that it holds them
  double repetition_penalty = 1.0;  ///< divides positive logits of tokens in prompt and answer,
                                    ///< multiplies negative ones; 1e-6 to 1e6
  std::map<int32_t, double> logit_bias = {};  ///< token id to what its logit gets, -100 to 100
  std::optional<std::vector<int32_t>> allowed_token_ids = std::nullopt;  ///< no others are drawn
  std::vector<std::string> bad_words = {};  ///< texts whose last token is not drawn after the rest
  std::optional<int64_t> logprobs = std::nullopt;  ///< best alternatives for each token, 0 to 20
  std::optional<int64_t> prompt_logprobs = std::nullopt;  ///< the same for each prompt token
  int64_t n = 1;                                          ///< answers to the same prompt, 1 to 128
  std::optional<uint64_t> seed = std::nullopt;
  bool skip_special_tokens = true;  ///< leave special tokens out of the text

  /// Throws UserError that names the field, its value and what would be right.
  void validate() const;

  bool operator==(const SamplingParams&) const = default;
};

}  // namespace nanovllm
