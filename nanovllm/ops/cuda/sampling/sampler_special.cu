#include "nanovllm/ops/cuda/sampling/sampler.cuh"

// Rows with penalties, biases, masks or filters, and log-probabilities: one block a row, passes
// over its logits. The worst token that top_k or top_p leave is found through a histogram of how
// far values lie below the best: how many tokens, and how much weight, are in each bin says in
// which bin it is, and the few tokens of that one are sorted. Where they are not few (many equal
// values), it is found digit by digit, from the highest of a value's 32 bits.
namespace nanovllm::cuda {
namespace {

// -- kernels

constexpr int kThreads = 1024;

/// The worst token that may be drawn: its value, ordered, and its id.
struct Worst {
  uint32_t value = 0;
  int32_t id = 0x7fffffff;
  __device__ bool keeps(uint32_t v, int32_t i) const {
    return v > value || (v == value && i <= id);
  }
};

constexpr int kBins = 512, kBinsPerUnit = 16;  // a unit: a factor e of weight
constexpr int kMaxSorted = 2048;

/// Sums of 42-bit weights as three sums of 14 bits: additions of 32 bits are the fast ones.
struct Histogram {
  uint32_t count[kBins], low[kBins], middle[kBins], high[kBins];

  __device__ void add(int bin, unsigned long long weight) {
    atomicAdd(&count[bin], 1u);
    if (weight == 0) return;
    atomicAdd(&low[bin], static_cast<uint32_t>(weight & 0x3fff));
    atomicAdd(&middle[bin], static_cast<uint32_t>(weight >> 14 & 0x3fff));
    atomicAdd(&high[bin], static_cast<uint32_t>(weight >> 28));
  }
  __device__ unsigned long long weight(int bin) const {
    return low[bin] + (static_cast<unsigned long long>(middle[bin]) << 14) +
           (static_cast<unsigned long long>(high[bin]) << 28);
  }
};

struct Shared {
  union {
    unsigned long long digits[256];
    unsigned long long sorted[kMaxSorted];  // value and id, as rank_of()
  };
  Histogram histogram;
  unsigned long long sums[32];
  unsigned long long rest;
  uint32_t digit;
  int num_sorted;
};

/// A row and one block's passes over it.
class Row {
 public:
  __device__ Row(const float* logits, int vocab, Shared& shared)
      : logits_(logits), vocab_(vocab), shared_(shared) {}

  template <class Body>
  __device__ void for_each(Body body) const {
    for (int id = threadIdx.x; id < vocab_; id += kThreads) body(id, logits_[id]);
  }
  /// kRowBad, kRowHasFinite; `best` is the largest logit's rank.
  __device__ int scan(unsigned long long& best) const {
    int flags = 0;
    best = 0;
    for_each([&](int id, float x) {
      flags |= flags_of(x);
      if (x > -INFINITY) best = max(best, rank_of(x, id));
    });
    const int bad = __syncthreads_or(flags & kRowBad);
    const int finite = __syncthreads_or(flags & kRowHasFinite);
    best = block_max(best, shared_.sums);
    return (bad ? kRowBad : 0) | (finite ? kRowHasFinite : 0);
  }
  /// The largest x with at least `target` of amount(id, logit) at numbers key(id, logit) >= x, over
  /// tokens where taken(id, logit); `target` becomes what of it is left at x itself. Where there is
  /// less, 0.
  template <class Taken, class Key, class Amount>
  __device__ uint32_t select(unsigned long long& target, Taken taken, Key key, Amount amount) {
    uint32_t prefix = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      __syncthreads();
      if (threadIdx.x < 256) shared_.digits[threadIdx.x] = 0;
      __syncthreads();
      for_each([&](int id, float x) {
        if (!taken(id, x)) return;
        const uint32_t k = key(id, x);
        if (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8))
          atomicAdd(&shared_.digits[k >> shift & 255], amount(id, x));
      });
      __syncthreads();
      if (threadIdx.x == 0) {
        unsigned long long above = 0;
        int digit = 255;
        while (digit > 0 && above + shared_.digits[digit] < target)
          above += shared_.digits[digit--];
        shared_.digit = static_cast<uint32_t>(digit);
        shared_.rest = target > above ? target - above : 0;
      }
      __syncthreads();
      prefix |= shared_.digit << shift;
      target = shared_.rest;
    }
    return prefix;
  }
  /// Leaves `count` of the tokens with value `value`, those with the lowest ids.
  template <class Taken>
  __device__ Worst cut_ties(uint32_t value, unsigned long long count, Taken taken_there) {
    unsigned long long there = 0;
    for_each([&](int id, float x) { there += taken_there(id, x) ? 1 : 0; });
    there = block_total(there, shared_.sums);
    if (count >= there) return {value, 0x7fffffff};
    const uint32_t id = select(
        count, taken_there, [](int i, float) { return ~static_cast<uint32_t>(i); },
        [](int, float) { return 1ull; });
    return {value, static_cast<int32_t>(~id)};
  }
  __device__ unsigned long long total(unsigned long long x) { return block_total(x, shared_.sums); }
  __device__ unsigned long long largest(unsigned long long x) { return block_max(x, shared_.sums); }

 private:
  const float* logits_;
  int vocab_;
  Shared& shared_;
};

/// How top_k and top_p cut the row. Every thread has the same.
class Cut {
 public:
  __device__ Cut(Row& row, Shared& shared, float scale, float best, float at_least)
      : row_(row), shared_(shared), scale_(scale), best_(best) {
    worst_.value = ordered(at_least);
  }
  __device__ bool kept(int id, float x) const {
    return x > -INFINITY && worst_.keeps(ordered(value(x)), id);
  }
  __device__ float value(float x) const { return __fmul_rn(x, scale_); }

  __device__ void fill_histogram() {
    for (int i = threadIdx.x; i < kBins * 4; i += kThreads) (&shared_.histogram.count[0])[i] = 0;
    __syncthreads();
    row_.for_each([&](int id, float x) {
      if (kept(id, x)) shared_.histogram.add(bin(x), weight(x));
    });
    __syncthreads();
  }
  /// The best `count`; fewer where there are no more.
  __device__ void keep_count(unsigned long long count) {
    cut(
        count, [&](int bin) { return static_cast<unsigned long long>(histogram().count[bin]); },
        [](float) { return 1ull; });
  }
  /// The best whose weight reaches that share of all.
  __device__ void keep_share(float share) {
    unsigned long long all = 0;
    row_.for_each([&](int id, float x) { all += kept(id, x) ? weight(x) : 0; });
    const auto target = static_cast<unsigned long long>(
        ceil(static_cast<double>(share) * static_cast<double>(row_.total(all))));
    cut(
        target, [&](int bin) { return histogram().weight(bin); },
        [&](float v) { return weight_of(__fadd_rn(v, -best_)); });
  }

 private:
  __device__ const Histogram& histogram() const { return shared_.histogram; }
  __device__ unsigned long long weight(float x) const {
    return weight_of(__fadd_rn(value(x), -best_));
  }
  __device__ int bin(float x) const {
    return static_cast<int>(fminf((best_ - value(x)) * kBinsPerUnit, kBins - 1.0f));
  }

  /// Leaves the shortest beginning of the tokens, best first, whose amount reaches `target`.
  template <class OfBin, class OfValue>
  __device__ void cut(unsigned long long target, OfBin of_bin, OfValue of_value) {
    __syncthreads();
    if (threadIdx.x == 0) {
      unsigned long long above = 0;
      int at = 0;
      while (at < kBins - 1 && above + of_bin(at) < target) above += of_bin(at++);
      shared_.digit = static_cast<uint32_t>(at);
      shared_.rest = target > above ? target - above : 0;
      shared_.num_sorted = 0;
    }
    __syncthreads();
    const int at = static_cast<int>(shared_.digit);
    unsigned long long rest = shared_.rest;
    if (histogram().count[at] > kMaxSorted) return cut_digits(target, of_value);
    row_.for_each([&](int id, float x) {
      if (kept(id, x) && bin(x) == at)
        shared_.sorted[atomicAdd(&shared_.num_sorted, 1)] = rank_of(value(x), id);
    });
    __syncthreads();
    const int count = shared_.num_sorted;
    sort(count);
    if (threadIdx.x == 0) {
      int last = 0;
      while (last + 1 < count) {
        const unsigned long long amount =
            of_value(from_ordered(static_cast<uint32_t>(shared_.sorted[last] >> 32)));
        if (amount >= rest) break;
        rest -= amount;
        ++last;
      }
      shared_.rest = count > 0 ? shared_.sorted[last] : 0;
    }
    __syncthreads();
    // Nothing in the bin: all that is kept amounts to less than the target.
    if (count > 0) worst_ = {static_cast<uint32_t>(shared_.rest >> 32), id_of(shared_.rest)};
  }
  /// The bin's tokens, best first: bitonic, over the next power of two.
  __device__ void sort(int count) {
    int size = 1;
    while (size < count) size *= 2;
    for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads)
      shared_.sorted[i] = 0;
    for (int run = 2; run <= size; run *= 2)
      for (int step = run / 2; step > 0; step /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < size / 2; i += kThreads) {
          const int low = i / step * 2 * step + i % step, high = low + step;
          const unsigned long long a = shared_.sorted[low], b = shared_.sorted[high];
          if ((a < b) == ((low & run) == 0)) {
            shared_.sorted[low] = b;
            shared_.sorted[high] = a;
          }
        }
      }
    __syncthreads();
  }
  template <class OfValue>
  __device__ void cut_digits(unsigned long long target, OfValue of_value) {
    const auto keeps = [&](int id, float x) { return kept(id, x); };
    const uint32_t at = row_.select(
        target, keeps, [&](int, float x) { return ordered(value(x)); },
        [&](int, float x) { return of_value(value(x)); });
    const unsigned long long each = of_value(from_ordered(at));
    const unsigned long long count = each == 0 ? 1 : max(1ull, (target + each - 1) / each);
    worst_ = row_.cut_ties(at, count,
                           [&](int id, float x) { return kept(id, x) && ordered(value(x)) == at; });
  }

  Row& row_;
  Shared& shared_;
  float scale_, best_;
  Worst worst_;
};

/// Penalties, biases and masks, on a copy of the row. Each id stands once in each list.
__device__ void adjust(const SampleParams& p, const RowParams& params, const int32_t* words,
                       const float* raw, float* copy) {
  const bool only_allowed = params.num_allowed > 0;
  const int2* counts = reinterpret_cast<const int2*>(words);
  const int2* biases = counts + params.num_counts;
  const int32_t* masked = reinterpret_cast<const int32_t*>(biases + params.num_biases);
  const int32_t* allowed = masked + params.num_masked;
  const auto in_vocabulary = [&](int id) { return 0 <= id && id < p.vocab; };
  for (int id = threadIdx.x; id < p.vocab; id += kThreads)
    copy[id] = only_allowed ? -INFINITY : raw[id];
  __syncthreads();
  for (int i = threadIdx.x; i < params.num_allowed; i += kThreads)
    if (in_vocabulary(allowed[i])) copy[allowed[i]] = raw[allowed[i]];
  __syncthreads();
  for (int i = threadIdx.x; i < params.num_counts; i += kThreads) {
    const int2 token = counts[i];
    if (!in_vocabulary(token.x)) continue;
    float x = copy[token.x];
    x = x > 0 ? __fdiv_rn(x, params.repetition) : __fmul_rn(x, params.repetition);
    x = __fadd_rn(x, -__fmul_rn(params.frequency, static_cast<float>(token.y)));
    copy[token.x] = token.y > 0 ? __fadd_rn(x, -params.presence) : x;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < params.num_biases; i += kThreads)
    if (in_vocabulary(biases[i].x))
      copy[biases[i].x] = __fadd_rn(copy[biases[i].x], __int_as_float(biases[i].y));
  __syncthreads();
  for (int i = threadIdx.x; i < params.num_masked; i += kThreads)
    if (in_vocabulary(masked[i])) copy[masked[i]] = -INFINITY;
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads)
    special_kernel(const SampleParams p, const int32_t* special, const int32_t* words,
                   float* scratch) {
  __shared__ Shared shared;
  begin_kernel();
  const int row_index = special[blockIdx.x];
  const RowParams params = p.rows[row_index];
  const float* logits = p.logits + int64_t{p.gathered ? int(blockIdx.x) : row_index} * p.vocab;
  unsigned long long best_logit;
  int flags = Row(logits, p.vocab, shared).scan(best_logit);
  const bool has_lists =
      params.num_counts + params.num_biases + params.num_masked + params.num_allowed > 0;
  if (flags == kRowHasFinite && has_lists) {
    float* const copy = scratch + int64_t{blockIdx.x} * p.vocab;
    adjust(p, params, words + params.first_word, logits, copy);
    logits = copy;
    flags = Row(logits, p.vocab, shared).scan(best_logit);
  }
  Row row(logits, p.vocab, shared);
  const float scale = __fdiv_rn(1.0f, params.temperature);
  const float best = __fmul_rn(from_ordered(static_cast<uint32_t>(best_logit >> 32)), scale);
  if (flags != kRowHasFinite || params.temperature < kGreedyTemperature || isinf(best)) {
    if (threadIdx.x == 0) finish_row(p, row_index, best_logit, flags);
    return;
  }

  constexpr float kLowest = -3.402823466e38f;
  float at_least = kLowest;
  if (params.min_p > 0)
    at_least = fminf(fmaxf(static_cast<float>(best + log(double{params.min_p})), kLowest), best);
  Cut cut(row, shared, scale, best, at_least);
  const bool has_top_k = params.top_k > 0 && params.top_k < p.vocab;
  if (has_top_k || params.top_p < 1) cut.fill_histogram();
  if (has_top_k) cut.keep_count(static_cast<unsigned long long>(params.top_k));
  if (params.top_p < 1) cut.keep_share(params.top_p);
  BestToken token;
  for (int group = threadIdx.x * 4; group < p.vocab; group += kThreads * 4) {
    const uint4 words4 = noise_words(params, group);
    const uint32_t word[4] = {words4.x, words4.y, words4.z, words4.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (const int id = group + i; id < p.vocab && cut.kept(id, logits[id]))
        token.add(cut.value(logits[id]), word[i], id);
  }
  const unsigned long long drawn = row.largest(token.rank());
  if (threadIdx.x == 0) finish_row(p, row_index, drawn, flags);
}

__global__ void __launch_bounds__(kThreads) logprobs_kernel(const LogprobParams p) {
  __shared__ Shared shared;
  begin_kernel();
  const int row_index = blockIdx.x, columns = p.k + 1;
  const float* logits = p.logits + int64_t{row_index} * p.vocab;
  const int32_t target = p.targets[row_index];
  int32_t* const ids = p.ids + int64_t{row_index} * columns;
  float* const logprobs = p.logprobs + int64_t{row_index} * columns;
  Row row(logits, p.vocab, shared);
  unsigned long long best;
  if (row.scan(best) != kRowHasFinite) {
    for (int i = threadIdx.x; i < columns; i += kThreads) {
      ids[i] = i == 0 ? target : i - 1;
      logprobs[i] = NAN;
    }
    if (threadIdx.x == 0) p.ranks[row_index] = 1;
    return;
  }
  const float best_logit = from_ordered(static_cast<uint32_t>(best >> 32));
  const unsigned long long target_rank = rank_of(logits[target], target);
  unsigned long long sum = 0, num_better = 0;
  row.for_each([&](int id, float x) {
    if (x > -INFINITY) sum += weight_of(__fadd_rn(x, -best_logit));
    num_better += rank_of(x, id) > target_rank ? 1 : 0;
  });
  sum = row.total(sum);
  num_better = row.total(num_better);
  const double log_sum = best_logit + log(static_cast<double>(sum) / 0x1p40);
  const auto logprob = [&](float x) { return static_cast<float>(x - log_sum); };
  if (threadIdx.x == 0) {
    ids[0] = target;
    logprobs[0] = logprob(logits[target]);
    p.ranks[row_index] = static_cast<int32_t>(num_better) + 1;
  }
  unsigned long long below = ~0ull;
  for (int i = 1; i < columns; ++i) {
    unsigned long long next = 0;
    row.for_each([&](int id, float x) {
      const unsigned long long rank = rank_of(x, id);
      if (rank < below) next = max(next, rank);
    });
    below = row.largest(next);
    if (threadIdx.x == 0) {
      ids[i] = id_of(below);
      logprobs[i] = logprob(from_ordered(static_cast<uint32_t>(below >> 32)));
    }
  }
}

}  // namespace

// -- launchers

void sample_special(Launch where, const SampleParams& params, const int32_t* special, int count,
                    const int32_t* words, float* scratch) {
  launch(where, special_kernel, dim3(static_cast<unsigned>(count)), kThreads, 0, params, special,
         words, scratch);
}

void token_logprobs(Launch where, const LogprobParams& params) {
  launch(where, logprobs_kernel, dim3(static_cast<unsigned>(params.num_rows)), kThreads, 0, params);
}

}  // namespace nanovllm::cuda
