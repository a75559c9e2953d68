#include "nanovllm/ops/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/thread_owned.h"
#include "nanovllm/ops/cpu/memory.h"
#include "nanovllm/ops/cpu/parallel.h"
#include "nanovllm/ops/cpu/sampler_kernels.h"

namespace nanovllm::cpu {
namespace {

constexpr float kGreedyTemperature = 1e-5f;
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kLastId = std::numeric_limits<int32_t>::max();
/// e^-30 is no weight any more: 2^40 e^-30 < 1/2.
constexpr float kWeightless = 30;
/// So few candidates are sorted at once.
constexpr int64_t kFewCandidates = 2048;

const SamplerKernels& choose_kernels(Isa isa) {
  return isa >= Isa::kAvx512 ? kSamplerAvx512 : isa >= Isa::kAvx2 ? kSamplerAvx2 : kSamplerPlain;
}

bool better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

float gumbel_noise(uint32_t x) {
  const double u = (x + 0.5) * 0x1p-32;
  return static_cast<float>(-std::log(-std::log1p(-u)));
}

/// One thread's memory for a row, grown by the calling thread and kept.
class RowScratch {
 public:
  void reserve(int64_t vocab) {
    if (vocab <= vocab_) return;
    const auto n = static_cast<size_t>(vocab);
    memory_ = allocate(n * (sizeof(Candidate) + sizeof(uint64_t) + 3 * sizeof(float)));
    vocab_ = vocab;
  }
  uint64_t* weights() { return static_cast<uint64_t*>(memory_.get()); }                 // [vocab]
  Candidate* candidates() { return reinterpret_cast<Candidate*>(weights() + vocab_); }  // [vocab]
  float* logits() { return reinterpret_cast<float*>(candidates() + vocab_); }           // [vocab]
  float* chunk_max() { return logits() + vocab_; }      // [num_chunks(vocab)]
  float* sorted_max() { return chunk_max() + vocab_; }  // the same

 private:
  Buffer memory_;
  int64_t vocab_ = 0;
};

/// A scratch for each thread.
RowScratch* reserve_scratch(int64_t vocab) {
  auto& scratch = thread_owned<std::vector<RowScratch>>();
  const auto count = static_cast<size_t>(num_threads());
  if (scratch.size() < count) scratch.resize(count);
  for (RowScratch& s : scratch) s.reserve(vocab);
  return scratch.data();
}

/// What the two operations share: a row, its passes and its thread's memory.
class RowSampler {
 public:
  RowSampler(const float* logits, int64_t vocab, const SamplerKernels& kernels, RowScratch& scratch)
      : row_{logits, scratch.chunk_max(), vocab, 1}, kernels_(kernels), scratch_(scratch) {}

  RowStatus sample(const SampleRow& params, int32_t& token);
  void logprobs(int32_t target, int64_t k, int32_t* ids, float* logprobs, int32_t& rank);

 private:
  /// False where there is no distribution. best_logit_ and first_chunk_ are known afterwards.
  bool scan();
  /// Penalties, biases and masks, on a copy of the logits; false where there are none.
  bool adjust(const SampleRow& params);
  int32_t greedy() const;
  /// The worst token that can be drawn.
  Candidate worst_of_top_k(float at_least, int64_t k, float top_p);
  Candidate worst_of_top_p(float at_least, float top_p);
  Candidate where_weight_reaches(int64_t count, uint64_t weight, uint64_t target);
  /// Candidates that surely hold the best k of those at or above a value; returns how many.
  int64_t collect_best(float at_least, int64_t k);

  RowView row_;
  const SamplerKernels& kernels_;
  RowScratch& scratch_;
  float best_logit_ = -kInfinity;
  float best_ = -kInfinity;  // value
  int64_t first_chunk_ = 0;  // that holds the best
};

bool RowSampler::scan() {
  if (!kernels_.scan(row_.logits, row_.vocab, scratch_.chunk_max())) return false;
  const float* const end = row_.chunk_max + num_chunks(row_.vocab);
  const float* const best = std::max_element(row_.chunk_max, end);
  best_logit_ = *best;
  first_chunk_ = best - row_.chunk_max;
  return best_logit_ > -kInfinity;
}

bool RowSampler::adjust(const SampleRow& params) {
  if (!params.has_lists()) return false;
  const float* const raw = row_.logits;
  float* const copy = scratch_.logits();
  const auto in_vocabulary = [&](int32_t id) { return 0 <= id && id < row_.vocab; };
  if (params.allowed_ids.empty()) {
    std::memcpy(copy, raw, static_cast<size_t>(row_.vocab) * sizeof(float));
  } else {
    std::fill_n(copy, row_.vocab, -kInfinity);
    for (const int32_t id : params.allowed_ids)
      if (in_vocabulary(id)) copy[id] = raw[id];
  }
  for (const TokenCount& token : params.counts) {
    if (!in_vocabulary(token.id)) continue;
    float& logit = copy[token.id];
    logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
    logit -= params.frequency_penalty * static_cast<float>(token.in_answer);
    if (token.in_answer > 0) logit -= params.presence_penalty;
  }
  for (const TokenBias& b : params.biases)
    if (in_vocabulary(b.id)) copy[b.id] += b.bias;
  for (const int32_t id : params.masked_ids)
    if (in_vocabulary(id)) copy[id] = -kInfinity;
  row_.logits = copy;
  return true;
}

int32_t RowSampler::greedy() const {
  int64_t id = first_chunk_ * kChunk;
  while (row_.logits[id] != best_logit_) ++id;
  return static_cast<int32_t>(id);
}

RowStatus RowSampler::sample(const SampleRow& params, int32_t& token) {
  token = 0;
  if (!scan()) return RowStatus::kNotFinite;
  if (adjust(params) && !scan()) return RowStatus::kNotFinite;
  row_.scale = 1 / params.temperature;
  best_ = best_logit_ * row_.scale;
  if (params.temperature < kGreedyTemperature || std::isinf(best_)) {
    token = greedy();
    return RowStatus::kOk;
  }
  Candidate worst = {kLowest, kLastId};
  if (params.min_p > 0)
    worst.value =
        std::clamp(static_cast<float>(best_ + std::log(double{params.min_p})), kLowest, best_);
  if (params.top_k > 0 && params.top_k < row_.vocab)
    worst = worst_of_top_k(worst.value, params.top_k, params.top_p);
  else if (params.top_p < 1) worst = worst_of_top_p(worst.value, params.top_p);
  token = kernels_.draw(
      row_, {.worst = worst,
             .key = {static_cast<uint32_t>(params.seed), static_cast<uint32_t>(params.seed >> 32)},
             .position = params.position,
             .choice = params.choice,
             .first_chunk = first_chunk_,
             .noise = gumbel_noise});
  return RowStatus::kOk;
}

int64_t RowSampler::collect_best(float at_least, int64_t k) {
  const int64_t chunks = num_chunks(row_.vocab);
  if (k > 0 && k <= chunks) {
    // The k best chunks' largest values are k values: the k best tokens are no worse than the least
    // of them.
    float* const sorted = scratch_.sorted_max();
    std::copy_n(row_.chunk_max, chunks, sorted);
    std::nth_element(sorted, sorted + k - 1, sorted + chunks, std::greater<>());
    at_least = std::max(at_least, sorted[k - 1] * row_.scale);
  }
  return kernels_.collect(row_, at_least, kInfinity, scratch_.candidates());
}

/// The weight that top_p asks for.
uint64_t share(float top_p, uint64_t weight) {
  return static_cast<uint64_t>(std::ceil(double{top_p} * static_cast<double>(weight)));
}

Candidate RowSampler::worst_of_top_k(float at_least, int64_t k, float top_p) {
  Candidate* const candidates = scratch_.candidates();
  int64_t count = collect_best(at_least, k);
  if (count > k) {
    std::nth_element(candidates, candidates + k - 1, candidates + count, better);
    count = k;
  }
  if (top_p >= 1) return *std::max_element(candidates, candidates + count, better);
  uint64_t* const weights = scratch_.weights();
  kernels_.weigh(candidates, count, best_, weights);
  return where_weight_reaches(count, 0,
                              share(top_p, std::accumulate(weights, weights + count, uint64_t{0})));
}

Candidate RowSampler::worst_of_top_p(float at_least, float top_p) {
  // What lies from `low` on weighs enough, what lies from `high` on too little. Halving leaves few
  // tokens between them.
  float low = std::max(at_least, best_ - kWeightless), high = kInfinity;
  Mass from_low = kernels_.mass(row_, best_, low), from_high = {0, 0};
  const uint64_t target = share(top_p, from_low.weight);
  while (from_low.count - from_high.count > kFewCandidates) {
    const float middle = low + (std::min(high, best_) - low) / 2;
    if (!(low < middle && middle < high)) break;
    const Mass mass = kernels_.mass(row_, best_, middle);
    (mass.weight >= target ? low : high) = middle;
    (mass.weight >= target ? from_low : from_high) = mass;
  }
  const int64_t count = kernels_.collect(row_, low, high, scratch_.candidates());
  return where_weight_reaches(count, from_high.weight, target);
}

Candidate RowSampler::where_weight_reaches(int64_t count, uint64_t weight, uint64_t target) {
  Candidate* const candidates = scratch_.candidates();
  uint64_t* const weights = scratch_.weights();
  std::sort(candidates, candidates + count, better);
  kernels_.weigh(candidates, count, best_, weights);
  int64_t i = 0;
  while ((weight += weights[i]) < target && i + 1 < count) ++i;
  return candidates[i];
}

void RowSampler::logprobs(int32_t target, int64_t k, int32_t* ids, float* logprobs, int32_t& rank) {
  ids[0] = target;
  if (!scan()) {
    std::iota(ids + 1, ids + 1 + k, 0);
    std::fill_n(logprobs, k + 1, std::numeric_limits<float>::quiet_NaN());
    rank = 1;
    return;
  }
  const uint64_t weight = kernels_.mass(row_, best_logit_, kLowest).weight;
  const double log_sum = best_logit_ + std::log(static_cast<double>(weight) / kWeightOne);
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };
  logprobs[0] = logprob(row_.logits[target]);
  rank = static_cast<int32_t>(kernels_.count_better(row_, target)) + 1;
  if (k == 0) return;
  Candidate* const best = scratch_.candidates();
  const int64_t count = collect_best(-kInfinity, k);
  std::partial_sort(best, best + k, best + count, better);
  for (int64_t i = 0; i < k; ++i) {
    ids[i + 1] = best[i].id;
    logprobs[i + 1] = logprob(best[i].value);
  }
}

void check_logits(const Tensor& logits, size_t num_rows) {
  check(logits.dtype == DType::kF32 && logits.rank == 2 &&
            logits.shape[0] == static_cast<int64_t>(num_rows) && logits.shape[1] > 0,
        "logits [{}, {}] {} for {} rows", logits.shape[0], logits.shape[1],
        dtype_name(logits.dtype), num_rows);
}

}  // namespace

void sample(Tensor logits, std::span<const SampleRow> rows, std::span<int32_t> token_ids,
            std::span<RowStatus> status, Isa isa) {
  check_logits(logits, rows.size());
  check(token_ids.size() == rows.size() && status.size() == rows.size(),
        "{} rows, {} token ids, {} states", rows.size(), token_ids.size(), status.size());
  const int64_t vocab = logits.shape[1];
  const SamplerKernels& kernels = choose_kernels(isa);
  RowScratch* const scratch = reserve_scratch(vocab);
  parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i, int thread) {
    const auto r = static_cast<size_t>(i);
    const float* row = logits.as<float>() + static_cast<int64_t>(r) * logits.row_stride;
    status[r] = RowSampler(row, vocab, kernels, scratch[thread]).sample(rows[r], token_ids[r]);
  });
}

void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                    std::span<int32_t> ids, std::span<float> logprobs,
                    std::span<int32_t> target_ranks, Isa isa) {
  check_logits(logits, targets.size());
  const int64_t vocab = logits.shape[1];
  const size_t columns = static_cast<size_t>(k) + 1;
  check(0 <= k && k <= vocab && ids.size() == targets.size() * columns &&
            logprobs.size() == ids.size() && target_ranks.size() == targets.size(),
        "the best {} of {} tokens for {} rows: {} ids, {} log-probabilities, {} ranks", k, vocab,
        targets.size(), ids.size(), logprobs.size(), target_ranks.size());
  for (const int32_t id : targets)
    check(0 <= id && id < vocab, "target {} is not in the vocabulary of {}", id, vocab);
  const SamplerKernels& kernels = choose_kernels(isa);
  RowScratch* const scratch = reserve_scratch(vocab);
  parallel_for(static_cast<int64_t>(targets.size()), [&](int64_t i, int thread) {
    const auto r = static_cast<size_t>(i);
    const float* row = logits.as<float>() + static_cast<int64_t>(r) * logits.row_stride;
    RowSampler(row, vocab, kernels, scratch[thread])
        .logprobs(targets[r], k, &ids[r * columns], &logprobs[r * columns], target_ranks[r]);
  });
}

}  // namespace nanovllm::cpu
