#include "nanovllm/ops/cuda/tuning/autotuner.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/tuning/shape_bucket.h"

namespace nanovllm::cuda {

namespace {

/// Larger than the L2 cache. This much memory is written before each measured GEMM, so that the
/// GEMM reads its weights from memory, as in a step, and so that it is launched before the GPU is
/// free.
constexpr size_t kFlushBytes = size_t{128} << 20;
/// How long the kernel before a measured one runs. What a GEMM prefetches during that time is its
/// advantage in a step as well.
constexpr int64_t kSpinCycles = 6000;
/// With more tokens a run takes long enough for two measurements instead of four.
constexpr int64_t kManyTokens = 1024;
/// A candidate that takes this many times as long as the fastest one is not measured again.
constexpr double kTooSlow = 1.15;

}  // namespace

Autotuner::Autotuner(Launch where, std::function<void(cudaEvent_t)> wait)
    : where_(where), wait_(std::move(wait)) {
  for (cudaEvent_t& event : events_) cuda_check(cudaEventCreate(&event), "autotuning");
}

Autotuner::~Autotuner() {
  cudaFree(flush_);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

Autotuner::Key Autotuner::key(int operation, Tensor out, Tensor x, Tensor w) {
  return {operation,  largest_in_bucket(x.shape[0]), w.shape[0],
          w.shape[1], static_cast<int>(x.dtype),     static_cast<int>(out.dtype)};
}

void Autotuner::measure_only(int64_t num_tokens) {
  if (num_tokens == 0) cudaFree(std::exchange(flush_, nullptr));
  else if (flush_ == nullptr && cudaMalloc(&flush_, kFlushBytes) != cudaSuccess) cudaGetLastError();
  measured_tokens_ = flush_ != nullptr ? num_tokens : 0;
}

GemmChoice Autotuner::choose(const Key& key, int64_t num_tokens,
                             const std::function<std::vector<GemmChoice>()>& candidates,
                             const std::function<void(const GemmChoice&)>& run) {
  const bool measures = flush_ != nullptr && num_tokens == measured_tokens_;
  const auto at = choices_.find(key);
  if (at != choices_.end() && (at->second.is_measured || !measures)) return at->second.choice;
  const std::vector<GemmChoice> all = candidates();
  // run() may come here for another GEMM, so nothing of the map is kept meanwhile.
  const GemmChoice chosen = measures ? measure(all, num_tokens, run) : all.front();
  choices_[key] = {chosen, measures};
  return chosen;
}

GemmChoice Autotuner::measure(const std::vector<GemmChoice>& candidates, int64_t num_tokens,
                              const std::function<void(const GemmChoice&)>& run) {
  if (candidates.size() == 1) return candidates.front();
  // The first run is not measured, because it loads the kernel's code.
  for (const GemmChoice& candidate : candidates) run(candidate);
  // In rounds over all candidates, since a GPU that has been busy for long computes slower.
  std::vector<double> least(candidates.size(), INFINITY);
  for (int round = 0; round < (num_tokens > kManyTokens ? 2 : 4); ++round) {
    const double best = *std::ranges::min_element(least);
    for (size_t i = 0; i < least.size(); ++i)
      if (round == 0 || least[i] <= kTooSlow * best)
        least[i] = std::min(least[i], time_of([&] { run(candidates[i]); }));
  }
  return candidates[static_cast<size_t>(std::ranges::min_element(least) - least.begin())];
}

double Autotuner::time_of(const std::function<void()>& enqueue) {
  cuda_check(cudaMemsetAsync(flush_, 0, kFlushBytes, where_.stream), "autotuning");
  cuda_check(cudaEventRecord(events_[0], where_.stream), "autotuning");
  spin(where_, kSpinCycles);
  enqueue();
  spin(where_, 0);
  cuda_check(cudaEventRecord(events_[1], where_.stream), "autotuning");
  wait_(events_[1]);  // may wait for a collective of another rank, and that rank may die
  float time = 0;
  cuda_check(cudaEventElapsedTime(&time, events_[0], events_[1]), "autotuning");
  return time;
}

std::string Autotuner::to_text() const {
  std::ostringstream text;
  for (const auto& [key, known] : choices_) {
    if (!known.is_measured) continue;
    std::apply([&](auto... parts) { ((text << parts << ' '), ...); }, key);
    text << known.choice.kernel << ' ' << known.choice.in_pieces;
    for (const uint64_t word : known.choice.algorithm) text << ' ' << word;
    text << '\n';
  }
  return text.str();
}

void Autotuner::add_text(const std::string& text) {
  std::map<Key, Known> added;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Key key;
    Known known{.choice = {}, .is_measured = true};
    std::apply([&](auto&... parts) { (words >> ... >> parts); }, key);
    words >> known.choice.kernel >> known.choice.in_pieces;
    for (uint64_t& word : known.choice.algorithm) words >> word;
    require(words && words.peek() == std::char_traits<char>::eof(), "not a choice: {}", line);
    added[key] = known;
  }
  for (const auto& [key, known] : added)
    if (Known& here = choices_[key]; !here.is_measured) here = known;
}

int64_t Autotuner::num_measured() const {
  return std::ranges::count_if(choices_, [](const auto& c) { return c.second.is_measured; });
}

}  // namespace nanovllm::cuda
