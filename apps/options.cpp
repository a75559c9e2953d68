#include "options.h"

namespace nanovllm {

namespace {

void add_off_switch(CLI::App& app, const char* name, bool& value, const char* text,
                    const std::string& group) {
  app.add_flag_callback(
         name, [&value] { value = false; }, text)
      ->group(group);
}

}  // namespace

void add_model_argument(CLI::App& app, std::string& model) {
  app.add_option("MODEL", model, "Checkpoint folder in Hugging Face layout")->required();
}

void add_engine_options(CLI::App& app, EngineConfig& c) {
  const std::string group = "Engine options";
  const auto add = [&](const char* names, auto& value, const char* text) {
    return app.add_option(names, value, text)->group(group)->capture_default_str();
  };
  add("--device", c.device, "auto, cpu or cuda");
  add("--dtype", c.dtype,
      "auto (the checkpoint's; float32 becomes bfloat16), bfloat16, float16, float32");
  add("--load-format", c.load_format, "auto, or dummy: random weights from config.json alone");
  add("--max-model-len", c.max_model_len,
      "Tokens of prompt and answer together; 0: the most that fits");
  add("--max-num-seqs", c.max_num_seqs, "Sequences that run at the same time");
  add("--max-num-batched-tokens", c.max_num_batched_tokens,
      "Tokens computed in one step; 0: 2048 on the CPU, 16384 on CUDA");
  add("--gpu-memory-utilization", c.gpu_memory_utilization, "Share of the GPU's memory to use");
  add("--kv-cache-memory-bytes", c.kv_cache_memory_bytes, "Size of the KV cache; 0: what fits");
  add("--block-size", c.block_size, "Tokens in a block of the KV cache, a multiple of 16");
  add("--num-gpu-blocks-override", c.num_gpu_blocks_override,
      "Blocks of the KV cache, on the CPU too");
  app.add_flag("--enforce-eager", c.enforce_eager, "No CUDA graphs")->group(group);
  add_off_switch(app, "--no-enable-prefix-caching", c.enable_prefix_caching,
                 "Compute every prompt from its start", group);
  add_off_switch(app, "--no-async-scheduling", c.async_scheduling,
                 "Schedule a step when the last one is done", group);
  add("--tensor-parallel-size", c.tensor_parallel_size, "Ranks, one process for each; also -tp N");
  add("--step-timeout", c.step_timeout,
      "Seconds without progress after which a step counts as hung");
  add("--threads", c.threads, "Threads of the CPU backend; 0: all cores");
  app.add_option("--seed", c.seed, "Seed of requests that bring none; random unless given")
      ->group(group);
}

void add_sampling_options(CLI::App& app, SamplingParams& p) {
  const std::string group = "Sampling options";
  const auto add = [&](const char* names, auto& value, const char* text) {
    return app.add_option(names, value, text)->group(group)->capture_default_str();
  };
  add("--temperature", p.temperature, "0: always the best token");
  add("--top-p", p.top_p, "Draw from the best tokens that together have this probability");
  add("--top-k", p.top_k, "Draw from so many best tokens; 0: off");
  add("--min-p", p.min_p, "Least probability, as a share of the best token's");
  add("--max-tokens", p.max_tokens, "Longest answer");
  add("--min-tokens", p.min_tokens, "Shortest answer");
  app.add_flag("--ignore-eos", p.ignore_eos, "Go on past end tokens")->group(group);
  const auto add_list = [&](const char* name, auto& values, const char* text) {
    app.add_option(name, values, text)->group(group)->allow_extra_args(false);
  };
  add_list("--stop", p.stop, "End before this text; repeatable");
  add_list("--stop-token-id", p.stop_token_ids, "End at this token; repeatable");
  add("--presence-penalty", p.presence_penalty, "Against tokens that the answer holds");
  add("--frequency-penalty", p.frequency_penalty,
      "Against tokens, for each time the answer holds them");
  add("--repetition-penalty", p.repetition_penalty, "Against tokens of prompt and answer");
  app.add_option("--logprobs", p.logprobs,
                 "Log-probabilities of each token and its K best alternatives")
      ->group(group);
  app.add_option("--prompt-logprobs", p.prompt_logprobs, "The same for the prompt")->group(group);
  add("--n", p.n, "Answers to each prompt");
  app.add_option("--sample-seed", p.seed, "The same seed gives the same answer")->group(group);
  add_off_switch(app, "--keep-special-tokens", p.skip_special_tokens,
                 "Show special tokens in the text", group);
}

}  // namespace nanovllm
