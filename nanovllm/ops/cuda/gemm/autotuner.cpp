#include "nanovllm/ops/cuda/gemm/autotuner.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nanovllm/ops/cuda/elementwise/elementwise.h"
#include "nanovllm/ops/cuda/gemm/shape_bucket.h"

namespace nanovllm::cuda {

namespace {

/// Larger than the L2 cache. This much memory is written before each measured GEMM, so that the
/// GEMM reads its weights from memory, as in a step, and so that it is launched before the GPU is
/// free.
constexpr size_t kFlushBytes = size_t{128} << 20;
/// How long the kernel before a measured one runs. What a GEMM prefetches during that time is its
/// advantage in a step as well.
constexpr int64_t kSpinCycles = 6000;
/// With more tokens one run takes long enough to be measured alone.
constexpr int64_t kManyTokens = 1024;
/// A candidate that takes this many times as long as the fastest one is not measured again.
constexpr double kTooSlow = 1.25;

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
  return {operation, largest_in_bucket(x.shape[0]), w.shape[0], w.shape[1], x.dtype, out.dtype};
}

int Autotuner::choose(int operation, Tensor out, Tensor x, Tensor w, int num_candidates,
                      const std::function<void(int)>& run) {
  Choice& known = choices_[key(operation, out, x, w)];
  if (!is_stale(known.num_tokens, x.shape[0]) || is_capturing()) return known.candidate;
  // The first run is not measured: it loads the kernel's code, and cuBLASLt chooses its algorithm.
  for (int candidate = 0; candidate < num_candidates; ++candidate) run(candidate);
  known = {measure(num_candidates, x.shape[0], run), x.shape[0]};
  return known.candidate;
}

bool Autotuner::is_capturing() const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(where_.stream, &status), "autotuning");
  return status != cudaStreamCaptureStatusNone;
}

int Autotuner::measure(int num_candidates, int64_t num_tokens,
                       const std::function<void(int)>& run) {
  // In rounds over all candidates, since a GPU that has been busy for long computes slower: first
  // one or two runs of each, then more runs of those that may still be the fastest.
  const bool is_long = num_tokens > kManyTokens;
  std::vector<double> first(static_cast<size_t>(num_candidates), INFINITY), least = first;
  for (int round = 0; round < (is_long ? 1 : 2); ++round)
    for (size_t i = 0; i < first.size(); ++i)
      first[i] = std::min(first[i], time_of(1, [&] { run(static_cast<int>(i)); }));
  const double best = *std::ranges::min_element(first);
  for (int round = 0; round < 2; ++round)
    for (size_t i = 0; i < first.size(); ++i)
      if (first[i] <= kTooSlow * best)
        least[i] = std::min(least[i], time_of(is_long ? 1 : 3, [&] { run(static_cast<int>(i)); }));
  return static_cast<int>(std::ranges::min_element(least) - least.begin());
}

double Autotuner::time_of(int num_runs, const std::function<void()>& enqueue) {
  double sum = 0;
  for (int run = 0; run < num_runs; ++run) {
    cuda_check(cudaMemsetAsync(flush_, run, kFlushBytes, where_.stream), "autotuning");
    cuda_check(cudaEventRecord(events_[0], where_.stream), "autotuning");
    spin(where_, kSpinCycles);
    enqueue();
    spin(where_, 0);
    cuda_check(cudaEventRecord(events_[1], where_.stream), "autotuning");
    wait_(events_[1]);  // may wait for a collective of another rank, and that rank may die
    float time = 0;
    cuda_check(cudaEventElapsedTime(&time, events_[0], events_[1]), "autotuning");
    sum += time;
  }
  return sum;
}

}  // namespace nanovllm::cuda
