#include "nanovllm/ops/cuda/tuning/autotuner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nanovllm/ops/cuda/elementwise/elementwise.h"

namespace nanovllm::cuda {

namespace {

/// This much memory, more than the L2 cache has, is read before each measured GEMM, so that the
/// GEMM reads its weights from memory, as in a step, and so that it is launched before the GPU is
/// free. If it were written, the L2 cache would have to write it to memory while the GEMM reads.
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

void Autotuner::set_measuring(bool on) {
  if (!on) cudaFree(std::exchange(flush_, nullptr));
  else if (flush_ == nullptr && cudaMalloc(&flush_, kFlushBytes) != cudaSuccess) cudaGetLastError();
}

GemmChoice Autotuner::choose(const GemmChoices::Key& key, int64_t num_tokens,
                             const std::function<std::vector<GemmChoice>()>& candidates,
                             const std::function<void(GemmChoice&)>& run) {
  const bool measures = flush_ != nullptr;
  const GemmChoices::Known* const known = choices_.find(key);
  if (known != nullptr && (!measures || known->num_tokens >= num_tokens)) return known->choice;
  const std::vector<GemmChoice> all = candidates();
  const GemmChoice chosen = measures ? measure(all, num_tokens, run) : all.front();
  choices_.set(key, {chosen, measures ? num_tokens : 0});
  return chosen;
}

GemmChoice Autotuner::measure(std::vector<GemmChoice> candidates, int64_t num_tokens,
                              const std::function<void(GemmChoice&)>& run) {
  if (candidates.size() == 1) return candidates.front();
  // The first run is not measured, because it loads the kernel's code.
  for (GemmChoice& candidate : candidates) run(candidate);
  // All candidates are measured in each round, since a GPU that has been busy for long is slower.
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
  read_all(where_, flush_, kFlushBytes);
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

}  // namespace nanovllm::cuda
