#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/field.h"
#include "nanovllm/base/structured_outputs.h"

namespace nanovllm {

/// The options of the engine, with vLLM's names and meanings. Zero or empty means that the value is
/// chosen at the start.
struct __attribute__((visibility("default"))) EngineConfig {
  std::string device = "auto";       ///< auto, cpu, cuda
  std::string dtype = "auto";        ///< auto (the checkpoint's, but bfloat16 for float32),
                                     ///< bfloat16, float16 (half), float32 (float)
  std::string load_format = "auto";  ///< auto (safetensors) or dummy (random weights)
  std::string revision = {};         ///< a branch, tag or commit of a model on the hub
  std::string download_dir = {};     ///< the cache of models; empty: that of the environment
  /// auto (the checkpoint's), or fp8 or int8: quantize at load. The name of the checkpoint's method
  /// means auto: fp8, awq, awq_marlin, gptq, gptq_marlin or compressed-tensors.
  std::string quantization = "auto";
  /// JSON that replaces rope_scaling (rope_parameters) of the model's config.json: with yarn the
  /// context may be longer than the model's own. Empty: use that of config.json.
  std::string rope_scaling = {};
  /// JSON {"rope_scaling": {...}} or {"rope_parameters": {...}}: vLLM's spelling of rope_scaling.
  /// It may also have max_position_embeddings, the model's own context.
  std::string hf_overrides = {};
  bool local_files_only = false;       ///< never download a model
  int64_t max_model_len = 0;           ///< most tokens of a prompt and its answer together
  int64_t max_num_seqs = 512;          ///< most sequences that run at the same time
  int64_t max_num_batched_tokens = 0;  ///< most tokens computed in one step
  /// The values that replace a max_num_batched_tokens of 0. These two fields are not options and
  /// have no description. Larger steps are not more efficient on a CPU, and every running answer
  /// waits for the whole step.
  int64_t cpu_batched_tokens = 2048, cuda_batched_tokens = 16384;
  double gpu_memory_utilization = 0.9;  ///< share of a GPU's memory that may be in use, that of
                                        ///< other programs included (unlike in vLLM)
  int64_t kv_cache_memory_bytes = 0;    ///< bytes of the KV cache of each rank
  std::string kv_cache_dtype = "auto";  ///< auto (that of dtype), or fp8: e4m3 with a float32 scale
                                        ///< for each key and value of a head
  int64_t block_size = 64;              ///< tokens in a block of the KV cache, a multiple of 16
  int64_t num_gpu_blocks_override = 0;  ///< blocks of the KV cache, on the CPU too
  bool enforce_eager = false;           ///< without CUDA graphs
  bool enable_prefix_caching = true;
  bool async_scheduling = true;      ///< schedule one step ahead of the device
  int64_t tensor_parallel_size = 1;  ///< ranks that share the model, one for each GPU
  double step_timeout = 60;          ///< seconds without progress after which a step counts as hung
  int64_t threads = 0;  ///< threads of the CPU backend, in all ranks together; 0: one for each core
                        ///< that this process may use
  /// The seed of requests that have none; random if it is not given.
  std::optional<uint64_t> seed = std::nullopt;
  /// Log-probabilities of generated tokens: raw_logprobs (of the model's logits) or
  /// processed_logprobs (of the distribution that the token was drawn from, after penalties,
  /// biases, temperature and filters). Those of prompt tokens are always raw.
  std::string logprobs_mode = "raw_logprobs";
  int64_t max_logprobs = 20;     ///< the most alternatives of a token that a request may ask for
  bool use_cache = true;         ///< keep choices of kernels for later processes
  std::string cache_dir = {};    ///< their folder; empty: nanovllm in the user's cache folder
  std::string trace = {};        ///< a file for a trace of all steps and requests; empty: none
  std::string worker_path = {};  ///< the nanovllm binary that worker ranks run; by default this
                                 ///< program if it is nanovllm, else the one next to the library

  /// Throws UserError that names the field, its value and what would be right.
  void validate() const;
  /// Replaces a max_num_batched_tokens of 0, once the device is known.
  void choose_batched_tokens();
  /// The folder for choices of kernels: cache_dir, or nanovllm in $XDG_CACHE_HOME or ~/.cache.
  /// Empty without use_cache, and if there is no home folder.
  std::string cache_folder() const;
  /// Calls visit(FieldInfo, pointer to member) for every field that has a description.
  template <class Visit>
  static void for_each_field(Visit&& visit);

  bool operator==(const EngineConfig&) const = default;
};

/// The value of max_tokens for an answer that only the context length limits.
constexpr int64_t kNoMaxTokens = std::numeric_limits<int32_t>::max();

/// The value of a request's seed that means none: -1, as in vLLM.
constexpr uint64_t kNoSeed = std::numeric_limits<uint64_t>::max();

/// How one request is sampled, with vLLM's names and meanings. A temperature of 0 (or below 1e-5)
/// means greedy.
struct __attribute__((visibility("default"))) SamplingParams {
  double temperature = 1.0;  ///< at most the largest float
  double top_p = 1.0;  ///< keep the fewest best tokens whose total probability reaches it; 1: off
  int64_t top_k = 0;   ///< keep the top_k best tokens; 0 or -1: off
  double min_p = 0.0;  ///< least probability of a token, relative to that of the best token
  int64_t max_tokens = 64;  ///< kNoMaxTokens: only the context limits it
  int64_t min_tokens = 0;   ///< before it, end tokens and stop_token_ids are not drawn, and
                            ///< texts of stop do not end the answer
  bool ignore_eos = false;
  std::vector<std::string> stop = {};  ///< texts that end the answer; they are not part of it
  std::vector<int32_t> stop_token_ids = {};
  double presence_penalty = 0.0;  ///< subtracted from the logits of tokens that occur in the answer
  double frequency_penalty = 0.0;   ///< subtracted for each time that a token occurs in the answer
  double repetition_penalty = 1.0;  ///< divides the positive logits of tokens that occur in prompt
                                    ///< or answer, multiplies the negative ones; 1e-6 to 1e6
  std::map<int32_t, double> logit_bias = {};  ///< added to the logit of each token id, -100 to 100
  std::optional<std::vector<int32_t>> allowed_token_ids = std::nullopt;  ///< only these are drawn
  std::vector<std::string> bad_words =
      {};  ///< the last token of each is not drawn after the others
  std::optional<int64_t> logprobs = std::nullopt;  ///< best alternatives of each token, 0 to 20
  std::optional<int64_t> prompt_logprobs = std::nullopt;  ///< best alternatives of prompt tokens
  int64_t n = 1;                                          ///< answers to the same prompt, 1 to 128
  /// Equal seeds give equal noise. Whether they give equal tokens in any batch depends on device
  /// and dtype (docs/architecture.md, "Numbers").
  std::optional<uint64_t> seed = std::nullopt;
  /// The form that the answer must have; in JSON and Python `structured_outputs`.
  std::optional<StructuredOutputs> constraint = std::nullopt;
  bool skip_special_tokens = true;  ///< leave special tokens out of the text
  bool detokenize = true;           ///< false: the text stays empty

  /// Throws UserError that names the field, its value and what would be right.
  void validate() const;
  /// Calls visit(FieldInfo, pointer to member) for every field.
  template <class Visit>
  static void for_each_field(Visit&& visit);

  bool operator==(const SamplingParams&) const = default;
};

// -- The descriptions of the fields, in the order of the help.

template <class Visit>
void EngineConfig::for_each_field(Visit&& visit) {
  using C = EngineConfig;
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  visit({"device", "--device",
         "Where the model runs; auto: on the GPU if there is one, else on the CPU",
         one_of("auto", "cpu", "cuda")},
        &C::device);
  visit(
      {"dtype",
       "--dtype",
       "Type of weights and activations; auto: the checkpoint's, but bfloat16 for float32",
       {.choices = {"auto", "bfloat16", "float16", "float32"}, .other_choices = {"half", "float"}}},
      &C::dtype);
  visit({"load_format",
         "--load-format",
         "Where weights come from; dummy: random weights, only config.json is needed",
         {.choices = {"auto", "dummy"},
          .other_choices = {"safetensors", "hf", "fastsafetensors", "instanttensor",
                            "runai_streamer"}}},
        &C::load_format);
  visit({"revision", "--revision NAME",
         "The branch, tag or commit of a model on the hub, as after @ in its id"},
        &C::revision);
  visit({"download_dir", "--download-dir DIR",
         "Folder of downloaded models; by default the Hugging Face cache"},
        &C::download_dir);
  visit({.name = "quantization",
         .option = "--quantization",
         .help = "Weights; auto: as the checkpoint has them; fp8, int8: those that it has not "
                 "quantized become so at load, on a GPU only those of the layers",
         .allowed = {.choices = {"auto", "fp8", "int8"},
                     .other_choices = {"awq", "awq_marlin", "gptq", "gptq_marlin",
                                       "compressed-tensors", "auto-round", "modelopt"}}},
        &C::quantization);
  visit({"local_files_only", "--local-files-only",
         "Download nothing: the model must be a folder or complete in the Hugging Face cache"},
        &C::local_files_only);
  visit({.name = "max_model_len",
         .option = "-c,--max-model-len TOKENS",
         .help = "Context length, prompt and answer together; 0 or auto: as long as the model and "
                 "the KV cache allow",
         .allowed = between(0, kMaxInt),
         .takes_auto = true},
        &C::max_model_len);
  visit({"rope_scaling", "--rope-scaling JSON",
         "Replaces the model's rope_scaling (rope_parameters), for a longer context: "
         "{\"rope_type\": \"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 32768}"},
        &C::rope_scaling);
  visit({"hf_overrides", "--hf-overrides JSON",
         "Replaces rope_parameters (or rope_scaling) and max_position_embeddings of config.json"},
        &C::hf_overrides);
  visit({"max_num_seqs", "--max-num-seqs N",
         "Maximum number of sequences that run at the same time", between(1, 65536)},
        &C::max_num_seqs);
  visit({"max_num_batched_tokens", "--max-num-batched-tokens TOKENS",
         "Maximum number of tokens per step; 0: 2048 on the CPU, 16384 on a GPU",
         between(0, 1 << 24)},
        &C::max_num_batched_tokens);
  visit(
      {"gpu_memory_utilization", "--gpu-memory-utilization SHARE",
       "Share of the GPU's memory that may be in use, that of other programs included; above 0 and "
       "at most 1",
       above(0, 1)},
      &C::gpu_memory_utilization);
  visit(
      {.name = "kv_cache_memory_bytes",
       .option = "--kv-cache-memory-bytes BYTES",
       .help =
           "Size of the KV cache of each rank (for example 4G or 512M). 0: most of the free memory "
           "of its GPU; on the CPU up to 4 GiB for all ranks together, taken as it is used",
       .allowed = at_least(0),
       .in_bytes = true},
      &C::kv_cache_memory_bytes);
  visit({"kv_cache_dtype",
         "--kv-cache-dtype",
         "Type of keys and values; auto: that of --dtype; fp8: 8 bits, for nearly twice the tokens",
         {.choices = {"auto", "fp8"}, .other_choices = {"fp8_e4m3"}}},
        &C::kv_cache_dtype);
  visit({"block_size",
         "--block-size TOKENS",
         "Tokens per KV-cache block, a multiple of 16",
         {.least = 16, .most = 65536, .multiple_of = 16}},
        &C::block_size);
  visit({"num_gpu_blocks_override", "--num-gpu-blocks-override N",
         "Number of KV-cache blocks, also on the CPU; 0: as many as the cache's size allows",
         between(0, kMaxInt)},
        &C::num_gpu_blocks_override);
  visit({"enforce_eager", "--enforce-eager", "Do not use CUDA graphs"}, &C::enforce_eager);
  visit({"enable_prefix_caching", "--no-enable-prefix-caching",
         "Do not reuse the KV cache of prompts that begin alike"},
        &C::enable_prefix_caching);
  visit({"async_scheduling", "--no-async-scheduling",
         "Schedule each step only when the previous one is done"},
        &C::async_scheduling);
  visit({"tensor_parallel_size", "--tensor-parallel-size N",
         "Number of processes (and GPUs) that share the model (also -tp N)", between(1, 64)},
        &C::tensor_parallel_size);
  visit({"step_timeout", "--step-timeout SECONDS", "Stop if a step makes no progress for this long",
         above(0)},
        &C::step_timeout);
  visit({"threads", "-t,--threads N", "CPU threads, all processes together; 0: one for each core",
         between(0, 4096)},
        &C::threads);
  visit({"seed", "--seed N", "Default seed; random if omitted"}, &C::seed);
  visit({"logprobs_mode", "--logprobs-mode",
         "Log-probabilities of the model, or processed: after penalties, temperature and filters",
         one_of("raw_logprobs", "processed_logprobs")},
        &C::logprobs_mode);
  visit({"max_logprobs", "--max-logprobs K",
         "The most alternatives of a token that a request may ask for", between(0, 20)},
        &C::max_logprobs);
  visit({"use_cache", "--no-cache", "Do not keep choices of GPU kernels for later processes"},
        &C::use_cache);
  visit({"cache_dir", "--cache-dir DIR",
         "Folder for choices of GPU kernels; by default $XDG_CACHE_HOME/nanovllm or "
         "~/.cache/nanovllm"},
        &C::cache_dir);
  visit({"trace", "--trace FILE",
         "Write all steps and requests to a file for https://ui.perfetto.dev (docs/learn.md)"},
        &C::trace);
  visit({.name = "worker_path", .help = "The nanovllm binary that the other ranks run"},
        &C::worker_path);
}

template <class Visit>
void SamplingParams::for_each_field(Visit&& visit) {
  using P = SamplingParams;
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  // The sampler computes in float. A larger temperature would be infinite there, and a penalty much
  // nearer to 0 would make infinite logits.
  constexpr double kMaxFloat = std::numeric_limits<float>::max();
  constexpr double kMaxPenalty = 1e6;
  visit({"temperature", "--temperature T",
         "Sampling temperature; 0: greedy, always the likeliest token", between(0, kMaxFloat),
         "temperature"},
        &P::temperature);
  visit({.name = "top_p",
         .option = "--top-p P",
         .help = "Nucleus sampling: draw from the likeliest tokens whose probabilities add up to P",
         .allowed = above(0, 1),
         .generation_config = "top_p",
         .typical = 0.9},
        &P::top_p);
  visit({"top_k", "--top-k K", "Draw from the K likeliest tokens; 0: from all",
         between(-1, kMaxInt), "top_k"},
        &P::top_k);
  visit({.name = "min_p",
         .option = "--min-p P",
         .help = "Leave out tokens with less than P times the probability of the likeliest one",
         .allowed = between(0, 1),
         .generation_config = "min_p",
         .typical = 0.05},
        &P::min_p);
  visit({"max_tokens", "-n,--max-tokens TOKENS", "Maximum number of tokens to generate",
         between(1, kMaxInt), "max_new_tokens", kNoMaxTokens},
        &P::max_tokens);
  visit({"min_tokens", "--min-tokens TOKENS",
         "Minimum number of tokens before an end token or a stop string ends the answer",
         between(0, kMaxInt)},
        &P::min_tokens);
  visit({"ignore_eos", "--ignore-eos", "Do not stop at the model's end token"}, &P::ignore_eos);
  visit({.name = "stop",
         .option = "--stop TEXT",
         .help = "Stop before this text (repeatable)",
         .takes_one_text = true},
        &P::stop);
  visit({"stop_token_ids", "--stop-token-id ID", "Stop at this token (repeatable)"},
        &P::stop_token_ids);
  visit({.name = "presence_penalty",
         .option = "--presence-penalty X",
         .help = "Above 0: make tokens that the answer contains less likely; -2 to 2",
         .allowed = between(-2, 2),
         .typical = 1},
        &P::presence_penalty);
  visit({"frequency_penalty", "--frequency-penalty X",
         "The same, in proportion to how often they occur; -2 to 2", between(-2, 2)},
        &P::frequency_penalty);
  visit({.name = "repetition_penalty",
         .option = "--repetition-penalty X",
         .help = "Above 1: make tokens of the prompt and the answer less likely",
         .allowed = between(1 / kMaxPenalty, kMaxPenalty),
         .generation_config = "repetition_penalty",
         .typical = 1.1},
        &P::repetition_penalty);
  visit({.name = "logit_bias",
         .help = "Added to the logit of each token id, -100 to 100",
         .allowed = between(-100, 100)},
        &P::logit_bias);
  visit({.name = "allowed_token_ids", .help = "Draw only these token ids"}, &P::allowed_token_ids);
  visit({.name = "bad_words",
         .help = "Texts: the last token of each is not drawn after its other tokens"},
        &P::bad_words);
  visit({"logprobs", "--logprobs K",
         "Log-probability of each token and of the K likeliest, 0 to 20 (with --json)",
         between(0, 20)},
        &P::logprobs);
  visit({"prompt_logprobs", "--prompt-logprobs K", "The same for the tokens of the prompt",
         between(0, 20)},
        &P::prompt_logprobs);
  visit({"n", "--n N", "Number of answers to each prompt", between(1, 128)}, &P::n);
  visit(
      {"seed", "--sample-seed N",
       "Seed of each request. In float32 on the CPU the answer then does not depend on the batch"},
      &P::seed);
  visit(
      {.name = "structured_outputs",
       .help = "The form of the answer: {\"json\": schema}, {\"regex\": ...}, {\"choice\": [...]}, "
               "{\"grammar\": ...}, {\"json_object\": true} or {\"structural_tag\": ...}"},
      &P::constraint);
  visit({"skip_special_tokens", "--keep-special-tokens", "Keep special tokens in the text"},
        &P::skip_special_tokens);
  visit({.name = "detokenize", .help = "Leave the text empty"}, &P::detokenize);
}

}  // namespace nanovllm
