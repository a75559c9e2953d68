// Measures tokens per second with random prompts, as nano-vLLM's bench.py does: 256 sequences with
// prompts and answers of 100 to 1,024 tokens each, or shorter ones if the model's context is short.
//   bench [MODEL] [SEQUENCES]
#include <nanovllm/llm.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int64_t kMinLen = 100;

void run(const std::string& model, int64_t num_seqs) {
  nanovllm::LLM llm(model);
  const int64_t max_len = std::clamp<int64_t>((llm.max_model_len() - 1) / 2, 1, 1024);
  const int64_t min_len = std::min(kMinLen, max_len);

  std::mt19937 random(0);
  std::uniform_int_distribution<int64_t> length(min_len, max_len);
  std::uniform_int_distribution<int32_t> token(
      0, static_cast<int32_t>(std::min<int64_t>(llm.vocab_size() - 1, 10000)));
  std::vector<std::vector<int32_t>> prompt_token_ids;
  std::vector<nanovllm::SamplingParams> sampling_params;
  int64_t total_tokens = 0;
  for (int64_t i = 0; i < num_seqs; ++i) {
    std::vector<int32_t>& prompt = prompt_token_ids.emplace_back(length(random));
    for (int32_t& id : prompt) id = token(random);
    sampling_params.push_back(
        {.temperature = 0.6, .max_tokens = length(random), .ignore_eos = true});
    total_tokens += sampling_params.back().max_tokens;
  }

  llm.generate({"Benchmark: "});
  const auto start = std::chrono::steady_clock::now();
  llm.generate(prompt_token_ids, sampling_params, /*use_tqdm=*/false);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("Total: %lldtok, Time: %.2fs, Throughput: %.2ftok/s\n",
              static_cast<long long>(total_tokens), seconds,
              static_cast<double>(total_tokens) / seconds);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "models/tiny-tales", argc > 2 ? std::atoll(argv[2]) : 256);
  } catch (const nanovllm::UserError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const std::exception& e) {  // a download or the engine failed
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
