#include "nanovllm/ops/cuda/gemm/autotuner.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/shape_bucket.h"

namespace nanovllm::cuda {

namespace {

/// Larger than the L2 cache. It is written between measured GEMMs, so that each reads its weights
/// from memory, as in a step, and so that its launch is there before its turn.
constexpr size_t kFlushBytes = size_t{128} << 20;
/// How long the kernel before a measured one runs: what a GEMM prefetches meanwhile counts for it.
constexpr int64_t kBeforeCycles = 6000;
/// Above so many tokens one run is long enough to be measured alone.
constexpr int64_t kManyTokens = 1024;
/// A candidate that took so many times the least time is not measured again.
constexpr double kHopeless = 1.25;

}  // namespace

Autotuner::Autotuner(Launch where, std::function<void(cudaEvent_t)> wait)
    : where_(where), wait_(std::move(wait)) {
  cuda_check(cudaMalloc(&flush_, kFlushBytes), "autotuning");
  for (cudaEvent_t& event : events_) cuda_check(cudaEventCreate(&event), "autotuning");
}

Autotuner::~Autotuner() {
  cudaFree(flush_);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

Autotuner::Key Autotuner::key(int operation, Tensor out, Tensor x, Tensor w) {
  return {operation, largest_like(x.shape[0]), w.shape[0], w.shape[1], x.dtype, out.dtype};
}

int Autotuner::choose(int operation, Tensor out, Tensor x, Tensor w, int num_candidates,
                      bool capturing, const std::function<void(int)>& run) {
  Choice& known = choices_[key(operation, out, x, w)];
  if (capturing || !is_stale(known.num_tokens, x.shape[0])) return known.candidate;
  // Once unmeasured: this loads a kernel's code and lets it make choices of its own.
  for (int candidate = 0; candidate < num_candidates; ++candidate) run(candidate);
  known = {measure(num_candidates, x.shape[0], run), x.shape[0]};
  return known.candidate;
}

int Autotuner::measure(int num_candidates, int64_t num_tokens,
                       const std::function<void(int)>& run) {
  // In turns, since a GPU that has long been busy computes slower: first a run or two of all, then
  // more of those that may yet win.
  const bool is_long = num_tokens > kManyTokens;
  std::vector<double> first(static_cast<size_t>(num_candidates), INFINITY), least = first;
  for (int round = 0; round < (is_long ? 1 : 2); ++round)
    for (size_t i = 0; i < first.size(); ++i)
      first[i] = std::min(first[i], timed(1, [&] { run(static_cast<int>(i)); }));
  const double best = *std::ranges::min_element(first);
  for (int round = 0; round < 2; ++round)
    for (size_t i = 0; i < first.size(); ++i)
      if (first[i] <= kHopeless * best)
        least[i] = std::min(least[i], timed(is_long ? 1 : 3, [&] { run(static_cast<int>(i)); }));
  return static_cast<int>(std::ranges::min_element(least) - least.begin());
}

double Autotuner::timed(int num_runs, const std::function<void()>& enqueue) {
  double sum = 0;
  for (int run = 0; run < num_runs; ++run) {
    cuda_check(cudaMemsetAsync(flush_, run, kFlushBytes, where_.stream), "autotuning");
    cuda_check(cudaEventRecord(events_[0], where_.stream), "autotuning");
    idle(where_, kBeforeCycles);
    enqueue();
    idle(where_, 0);
    cuda_check(cudaEventRecord(events_[1], where_.stream), "autotuning");
    wait_(events_[1]);  // behind another rank's sums, perhaps, and that rank may die
    float time = 0;
    cuda_check(cudaEventElapsedTime(&time, events_[0], events_[1]), "autotuning");
    sum += time;
  }
  return sum;
}

}  // namespace nanovllm::cuda
