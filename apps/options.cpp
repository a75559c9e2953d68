#include "options.h"

#include <fmt/format.h>

#include <charconv>
#include <string>

namespace nanovllm {

CLI::Validator whole_number(int64_t least, uint64_t most) {
  const auto rewrite = [=](std::string& text) -> std::string {
    const auto read = [&](auto& number) {
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, number);
      return error == std::errc() && stop == end;
    };
    int64_t below_0 = 0;
    uint64_t number = 0;
    if (read(number) && number <= most) text = std::to_string(number);
    else if (read(below_0) && below_0 < 0 && below_0 >= least) text = std::to_string(below_0);
    else return fmt::format("'{}' is no whole number of at most {}", text, most);
    return {};
  };
  return {rewrite, ""};
}

namespace {

void add_off_switch(CLI::App& app, const char* name, bool& value, const char* text,
                    const std::string& group) {
  app.add_flag_callback(
         name, [&value] { value = false; }, text)
      ->group(group);
}

}  // namespace

void add_model_argument(CLI::App& app, std::string& model) {
  app.add_option("MODEL", model, "Checkpoint folder in Hugging Face layout")
      ->required()
      ->type_name("FOLDER");
}

void add_engine_options(CLI::App& app, EngineConfig& c) {
  const std::string group = "Engine options";
  const auto add = [&](const char* names, auto& value, const char* type, const char* text) {
    add_value(app, names, value, text)->group(group)->type_name(type)->capture_default_str();
  };
  add("--device", c.device, "DEVICE",
      "cpu, cuda, or auto: CUDA where this build and machine have it");
  add("--dtype", c.dtype, "DTYPE",
      "bfloat16, float16, float32, or auto: the checkpoint's, bfloat16 for float32");
  add("--load-format", c.load_format, "FORMAT",
      "auto, or dummy: random weights from config.json alone");
  add("--max-model-len", c.max_model_len, "TOKENS",
      "Prompt and answer together; 0: the most that model and cache hold");
  add("--max-num-seqs", c.max_num_seqs, "N", "Sequences that run at the same time");
  add("--max-num-batched-tokens", c.max_num_batched_tokens, "TOKENS",
      "Computed in one step; 0: 2048 on the CPU, 16384 on CUDA");
  add("--gpu-memory-utilization", c.gpu_memory_utilization, "SHARE",
      "Of the GPU's memory, to use in all: above 0, at most 1");
  add("--kv-cache-memory-bytes", c.kv_cache_memory_bytes, "BYTES",
      "Size of the KV cache; 0: what fits");
  add("--block-size", c.block_size, "TOKENS", "In a block of the KV cache, a multiple of 16");
  add("--num-gpu-blocks-override", c.num_gpu_blocks_override, "N",
      "Blocks of the KV cache, on the CPU too; 0: what fits");
  app.add_flag("--enforce-eager", c.enforce_eager, "No CUDA graphs")->group(group);
  add_off_switch(app, "--no-enable-prefix-caching", c.enable_prefix_caching,
                 "Compute every prompt from its start", group);
  add_off_switch(app, "--no-async-scheduling", c.async_scheduling,
                 "Schedule a step when the last one is done", group);
  add("--tensor-parallel-size", c.tensor_parallel_size, "N",
      "Ranks, one process for each; also -tp N");
  add("--step-timeout", c.step_timeout, "SECONDS",
      "Without progress, after which a step counts as hung");
  add("--threads", c.threads, "N", "Threads of the CPU backend, all ranks together; 0: all cores");
  add_value(app, "--seed", c.seed, "Of requests that bring none; random unless given")
      ->group(group)
      ->type_name("N");
}

void add_sampling_options(CLI::App& app, SamplingParams& p) {
  const std::string group = "Sampling options";
  const auto add = [&](const char* names, auto& value, const char* type, const char* text) {
    add_value(app, names, value, text)->group(group)->type_name(type)->capture_default_str();
  };
  // Those that are off, or without an end, unless they are given.
  const auto add_without_default = [&](const char* name, auto& value, const char* type,
                                       const char* text) {
    add_value(app, name, value, text)->group(group)->type_name(type)->allow_extra_args(false);
  };
  add("--temperature", p.temperature, "T", "Below 1 likelier tokens, above 1 others; 0: the best");
  add("--top-p", p.top_p, "P",
      "Draw from the best tokens that together have this probability, above 0 to 1");
  add("--top-k", p.top_k, "K", "Draw from so many best tokens; 0: from all");
  add("--min-p", p.min_p, "P", "Least probability, 0 to 1, as a share of the best token's");
  add("--max-tokens", p.max_tokens, "TOKENS", "Longest answer");
  add("--min-tokens", p.min_tokens, "TOKENS", "No end token or stop string before so many");
  app.add_flag("--ignore-eos", p.ignore_eos, "Go on past end tokens")->group(group);
  add_without_default("--stop", p.stop, "TEXT", "End before this text; repeatable");
  add_without_default("--stop-token-id", p.stop_token_ids, "ID", "End at this token; repeatable");
  add("--presence-penalty", p.presence_penalty, "X", "Against tokens of the answer, -2 to 2");
  add("--frequency-penalty", p.frequency_penalty, "X",
      "The same for each time that the answer holds them, -2 to 2");
  add("--repetition-penalty", p.repetition_penalty, "X",
      "Against tokens of prompt and answer where above 1");
  add_without_default("--logprobs", p.logprobs, "K",
                      "Log-probabilities of each token and the K best, 0 to 20, with --json");
  add_without_default("--prompt-logprobs", p.prompt_logprobs, "K", "The same for the prompt");
  add("--n", p.n, "N", "Answers to each prompt");
  add_without_default("--sample-seed", p.seed, "N", "The same seed gives the same answer");
  add_off_switch(app, "--keep-special-tokens", p.skip_special_tokens,
                 "Show special tokens in the text", group);
}

}  // namespace nanovllm
