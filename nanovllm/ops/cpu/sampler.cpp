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
#include "nanovllm/ops/cpu/kernels/sampler.h"
#include "nanovllm/ops/cpu/machine/memory.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

namespace nanovllm::cpu {
namespace {

constexpr float kGreedyTemperature = 1e-5f;
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kLastId = std::numeric_limits<int32_t>::max();
/// A value that is lower than the best by this much has weight 0: 2^40 e^-30 < 1/2.
constexpr float kWeightless = 30;
/// At most this many candidates are sorted without first halving their range of values.
constexpr int64_t kFewCandidates = 2048;

bool better(const Candidate& a, const Candidate& b) {
  return a.value > b.value || (a.value == b.value && a.id < b.id);
}

float gumbel_noise(uint32_t x) {
  const double u = (x + 0.5) * 0x1p-32;
  return static_cast<float>(-std::log(-std::log1p(-u)));
}

/// One thread's memory for a row, kept from call to call.
class RowScratch {
 public:
  void reserve(int64_t vocab) {
    const auto n = static_cast<size_t>(vocab);
    weights = static_cast<uint64_t*>(
        memory_.reserve(n * (sizeof(uint64_t) + sizeof(Candidate) + 3 * sizeof(float))));
    candidates = reinterpret_cast<Candidate*>(weights + n);
    logits = reinterpret_cast<float*>(candidates + n);
    chunk_max = logits + n;
    sorted_max = chunk_max + n;
  }
  uint64_t* weights = nullptr;      // [vocab]
  Candidate* candidates = nullptr;  // [vocab]
  float* logits = nullptr;          // [vocab]
  float* chunk_max = nullptr;       // [num_chunks(vocab)]
  float* sorted_max = nullptr;      // [num_chunks(vocab)]

 private:
  Scratch memory_;
};

/// The sum of weights that the kept tokens must reach for top_p.
uint64_t share(float top_p, uint64_t weight) {
  return static_cast<uint64_t>(std::ceil(double{top_p} * static_cast<double>(weight)));
}

/// The steps of sample() and token_logprobs() on one row of logits.
class RowSampler {
 public:
  RowSampler(const float* logits, int64_t vocab, const SamplerKernels& kernels, RowScratch& scratch)
      : row_{logits, scratch.chunk_max, vocab, 1}, kernels_(kernels), scratch_(scratch) {}

  RowStatus sample(const SampleRow& params, int32_t& token) {
    token = 0;
    if (!adjust(params)) return RowStatus::kNotFinite;
    if (!warm(params)) {
      token = greedy();
      return RowStatus::kOk;
    }
    token = kernels_.draw(row_, {.worst = worst_kept(params),
                                 .key = {static_cast<uint32_t>(params.seed),
                                         static_cast<uint32_t>(params.seed >> 32)},
                                 .position = params.position,
                                 .choice = params.choice,
                                 .first_chunk = first_chunk_,
                                 .noise = gumbel_noise});
    return RowStatus::kOk;
  }

  /// Replaces the logits by the values from which the row is drawn, -infinity for tokens that
  /// cannot be drawn. To a greedy row only penalties, biases and masks are applied.
  void process(const SampleRow& params) {
    if (!adjust(params) || !warm(params)) return;
    const Candidate worst = worst_kept(params);
    float* const copy = scratch_.logits;
    for (int32_t id = 0; id < row_.vocab; ++id) {
      const Candidate token = {row_.logits[id] * row_.scale, id};
      copy[id] = better(worst, token) ? -kInfinity : token.value;
    }
    row_.logits = copy;
    row_.scale = 1;
  }

  void logprobs(int32_t target, std::span<Logprob> entries) {
    const auto k = std::ssize(entries) - 1;
    if (!scan()) {
      constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
      entries[0] = {target, kNan, 1};
      for (int32_t i = 1; i <= k; ++i) entries[static_cast<size_t>(i)] = {i - 1, kNan, i};
      return;
    }
    const uint64_t weight = kernels_.mass(row_, best_logit_, kLowest).weight;
    const double log_sum = best_logit_ + std::log(static_cast<double>(weight) / kWeightOne);
    const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };
    entries[0] = {target, logprob(row_.logits[target]),
                  static_cast<int32_t>(kernels_.count_better(row_, target)) + 1};
    if (k == 0) return;
    Candidate* const best = scratch_.candidates;
    const int64_t count = collect_best(-kInfinity, k);
    std::partial_sort(best, best + k, best + count, better);
    for (int32_t i = 0; i < k; ++i)
      entries[static_cast<size_t>(i) + 1] = {best[i].id, logprob(best[i].value), i + 1};
  }

 private:
  /// Sets best_logit_ and first_chunk_. Returns false if the row has no distribution.
  bool scan() {
    if (!kernels_.scan(row_, scratch_.chunk_max)) return false;
    const float* const end = row_.chunk_max + num_chunks(row_.vocab);
    const float* const best = std::max_element(row_.chunk_max, end);
    best_logit_ = *best;
    first_chunk_ = best - row_.chunk_max;
    return best_logit_ > -kInfinity;
  }

  /// Applies penalties, biases and masks to a copy of the logits. Returns false if the row has no
  /// distribution.
  bool adjust(const SampleRow& params) {
    if (!scan()) return false;
    if (!params.has_lists()) return true;
    const float* const raw = row_.logits;
    float* const copy = scratch_.logits;
    const auto in_vocabulary = [&](int32_t id) { return 0 <= id && id < row_.vocab; };
    if (!params.allowed_mask.empty()) {
      for (int32_t id = 0; id < row_.vocab; ++id)
        copy[id] = has_bit(params.allowed_mask, id) ? raw[id] : -kInfinity;
    } else if (params.allowed_ids.empty()) {
      std::memcpy(copy, raw, static_cast<size_t>(row_.vocab) * sizeof(float));
    } else {
      std::fill_n(copy, row_.vocab, -kInfinity);
      for (const int32_t id : params.allowed_ids)
        if (in_vocabulary(id)) copy[id] = raw[id];
    }
    const auto penalize = [&](TokenCount token) {
      if (!in_vocabulary(token.id)) return;
      float& logit = copy[token.id];
      logit = logit > 0 ? logit / params.repetition_penalty : logit * params.repetition_penalty;
      logit -= params.frequency_penalty * static_cast<float>(token.in_answer);
      if (token.in_answer > 0) logit -= params.presence_penalty;
    };
    bool counts_last = false;
    for (TokenCount token : params.counts) {
      const bool is_last = token.id == params.last_token;
      counts_last |= is_last;
      penalize({token.id, token.in_answer + (is_last ? 1 : 0)});
    }
    if (!counts_last) penalize({params.last_token, 1});
    for (const TokenBias& b : params.biases)
      if (in_vocabulary(b.id)) copy[b.id] += b.bias;
    for (const int32_t id : params.masked_ids)
      if (in_vocabulary(id)) copy[id] = -kInfinity;
    for (const auto [after, id] : params.masked_after)
      if (after == params.last_token && in_vocabulary(id)) copy[id] = -kInfinity;
    row_.logits = copy;
    return scan();
  }

  /// Divides by the temperature. Returns false if the row is greedy.
  bool warm(const SampleRow& params) {
    if (params.temperature < kGreedyTemperature) return false;
    const float scale = 1 / params.temperature;
    best_ = best_logit_ * scale;
    if (std::isinf(best_)) return false;
    row_.scale = scale;
    return true;
  }

  /// The worst token that can be drawn.
  Candidate worst_kept(const SampleRow& params) {
    Candidate worst = {kLowest, kLastId};
    if (params.min_p > 0)
      worst.value =
          std::clamp(static_cast<float>(best_ + std::log(double{params.min_p})), kLowest, best_);
    if (params.top_k > 0 && params.top_k < row_.vocab)
      return worst_of_top_k(worst.value, params.top_k, params.top_p);
    return params.top_p < 1 ? worst_of_top_p(worst.value, params.top_p) : worst;
  }

  int32_t greedy() const {
    int64_t id = first_chunk_ * kChunk;
    while (row_.logits[id] != best_logit_) ++id;
    return static_cast<int32_t>(id);
  }

  /// Collects candidates among which are the best k tokens at or above a value; returns how many.
  int64_t collect_best(float at_least, int64_t k) {
    const int64_t chunks = num_chunks(row_.vocab);
    if (k > 0 && k <= chunks) {
      // The largest values of the k best chunks are values of k tokens, so the k best tokens are no
      // worse than the least of these values.
      float* const sorted = scratch_.sorted_max;
      std::copy_n(row_.chunk_max, chunks, sorted);
      std::nth_element(sorted, sorted + k - 1, sorted + chunks, std::greater<>());
      at_least = std::max(at_least, sorted[k - 1] * row_.scale);
    }
    return kernels_.collect(row_, at_least, kInfinity, scratch_.candidates);
  }

  Candidate worst_of_top_k(float at_least, int64_t k, float top_p) {
    const int64_t found = collect_best(at_least, k), count = std::min(found, k);
    Candidate* const candidates = scratch_.candidates;
    if (found > k) std::nth_element(candidates, candidates + k - 1, candidates + found, better);
    if (top_p >= 1) return *std::max_element(candidates, candidates + count, better);
    uint64_t* const weights = scratch_.weights;
    kernels_.weigh(candidates, count, best_, weights);
    return where_weight_reaches(
        count, 0, share(top_p, std::accumulate(weights, weights + count, uint64_t{0})));
  }

  Candidate worst_of_top_p(float at_least, float top_p) {
    // The tokens with values of at least `low` weigh enough, those of at least `high` too little.
    // Halving that range leaves few tokens in it.
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
    const int64_t count = kernels_.collect(row_, low, high, scratch_.candidates);
    return where_weight_reaches(count, from_high.weight, target);
  }

  /// The candidate at which the sum of the weights, better tokens first, reaches `target`.
  Candidate where_weight_reaches(int64_t count, uint64_t weight, uint64_t target) {
    Candidate* const candidates = scratch_.candidates;
    uint64_t* const weights = scratch_.weights;
    std::sort(candidates, candidates + count, better);
    kernels_.weigh(candidates, count, best_, weights);
    int64_t i = 0;
    while ((weight += weights[i]) < target && i + 1 < count) ++i;
    return candidates[i];
  }

  RowView row_;
  const SamplerKernels& kernels_;
  RowScratch& scratch_;
  float best_logit_ = -kInfinity;
  float best_ = -kInfinity;  // the best value
  int64_t first_chunk_ = 0;  // the chunk that holds the best value
};

/// Calls f(sampler, r) for each row r of logits [num_rows, vocab], on all threads.
template <class F>
void for_each_row(const Tensor& logits, size_t num_rows, Isa isa, F f) {
  const int64_t vocab = logits.shape[1];
  check(logits.dtype == DType::kF32 && logits.rank == 2 &&
            logits.shape[0] == static_cast<int64_t>(num_rows) && vocab > 0,
        "logits [{}, {}] {} for {} rows", logits.shape[0], vocab, dtype_name(logits.dtype),
        num_rows);
  const SamplerKernels& kernels = kernels_for(isa, logits.dtype).sampler;
  auto& scratch = thread_owned<std::vector<RowScratch>>();
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(num_threads())));
  for (RowScratch& s : scratch) s.reserve(vocab);
  parallel_for(logits.shape[0], [&](int64_t r, int thread) {
    RowSampler row(logits.as<float>() + r * logits.row_stride, vocab, kernels,
                   scratch[static_cast<size_t>(thread)]);
    f(row, static_cast<size_t>(r));
  });
}

}  // namespace

void sample(Tensor logits, std::span<const SampleRow> rows, std::span<int32_t> token_ids,
            std::span<RowStatus> status, Isa isa) {
  check(token_ids.size() == rows.size() && status.size() == rows.size(),
        "{} rows, {} token ids, {} states", rows.size(), token_ids.size(), status.size());
  for_each_row(logits, rows.size(), isa,
               [&](RowSampler& row, size_t r) { status[r] = row.sample(rows[r], token_ids[r]); });
}

void token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                    std::span<Logprob> entries, std::span<const SampleRow> processed, Isa isa) {
  const int64_t vocab = logits.shape[1];
  const size_t columns = static_cast<size_t>(k) + 1;
  check(0 <= k && k <= vocab && entries.size() == targets.size() * columns,
        "the best {} of {} tokens for {} rows: {} entries", k, vocab, targets.size(),
        entries.size());
  for (const int32_t id : targets)
    check(0 <= id && id < vocab, "target {} is not in the vocabulary of {}", id, vocab);
  for_each_row(logits, targets.size(), isa, [&](RowSampler& row, size_t r) {
    if (!processed.empty()) row.process(processed[r]);
    row.logprobs(targets[r], entries.subspan(r * columns, columns));
  });
}

}  // namespace nanovllm::cpu
