// Measures the sampler and the log-probabilities on two kinds of logits: rows like those of a
// language model (a normal distribution with a standard deviation of 3, and a few much larger
// logits), and flat rows. GB/s counts the bytes of logits that one pass reads.
//   sampler_bench [threads [rows [vocabulary]]]

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/ops/cpu/machine/parallel.h"
#include "nanovllm/ops/cpu/sampler.h"

using namespace nanovllm;

namespace {

std::vector<float> make_logits(int64_t rows, int64_t vocab, float spread, float peak) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<size_t>(rows * vocab));
  for (float& x : logits) x = normal(random);
  for (int64_t r = 0; r < rows; ++r)
    for (int i = 0; i < 20; ++i) logits[r * vocab + random() % vocab] += peak;
  return logits;
}

template <class F>
double least_seconds(F&& f) {
  double best = 1e9;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    f();
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) cpu::set_num_threads(std::atoi(argv[1]));
  const int64_t rows = argc > 2 ? std::atoll(argv[2]) : 64;
  const int64_t vocab = argc > 3 ? std::atoll(argv[3]) : 151936;
  const std::vector<std::pair<std::string, SampleRow>> settings = {
      {"greedy", {{.temperature = 0}}},
      {"temperature 0.6", {{.temperature = 0.6f}}},
      {"temperature 1", {}},
      {"top_k 20", {{.temperature = 0.6f, .top_k = 20}}},
      {"top_p 0.95", {{.temperature = 0.6f, .top_p = 0.95f}}},
      {"min_p 0.05", {{.temperature = 0.6f, .min_p = 0.05f}}},
      {"top_k 20 top_p 0.95", {{.temperature = 0.6f, .top_p = 0.95f, .top_k = 20}}},
  };
  fmt::print("{} threads, {} rows of {}\n", cpu::num_threads(), rows, vocab);
  for (const auto& [kind, spread, peak] :
       {std::tuple{"model-like", 3.0f, 15.0f}, std::tuple{"flat", 1.0f, 0.0f}}) {
    std::vector<float> data = make_logits(rows, vocab, spread, peak);
    const Tensor logits(data.data(), DType::kF32, rows, vocab);
    const double bytes = static_cast<double>(data.size() * sizeof(float));
    const auto report = [&](cpu::Isa isa, const std::string& what, double time) {
      fmt::print("{:<11} {:<12} {:<22} {:>9.1f} us a row {:>7.1f} GB/s\n", kind, cpu::isa_name(isa),
                 what, time / static_cast<double>(rows) * 1e6, bytes / time / 1e9);
    };
    for (const cpu::Isa isa : {cpu::Isa::kPlain, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
      if (isa > cpu::best_isa()) continue;
      for (const auto& [name, row] : settings) {
        std::vector<SampleRow> params(static_cast<size_t>(rows), row);
        for (size_t r = 0; r < params.size(); ++r) params[r].seed = r;
        std::vector<int32_t> tokens(params.size());
        std::vector<RowStatus> status(params.size());
        report(isa, name, least_seconds([&] { cpu::sample(logits, params, tokens, status, isa); }));
      }
      const std::vector<int32_t> targets(static_cast<size_t>(rows), 5);
      std::vector<Logprob> entries(targets.size() * 6);
      report(isa, "logprobs 5",
             least_seconds([&] { cpu::token_logprobs(logits, targets, 5, entries, {}, isa); }));
    }
  }
}
