
#include "nanovllm/ops/cuda/sampling/sampler_filters.cuh"

// Draws rows with penalties, biases, masks or filters, by the rule of ops/sample_row.h, and
// computes log-probabilities, logit - log(sum of e^logit). A cluster of thread blocks has a row, or
// one thread block where there are no clusters (sampler_row.cuh). With few rows latency bounds
// these kernels: passes over the row in shared memory, each with an exchange among the thread
// blocks.
namespace nanovllm::cuda {
using namespace rows;
namespace {

// -- device code

/// A list in global memory. Each thread loads its first entry at once, so that it arrives while the
/// row is copied.
template <class T>
class Entries {
 public:
  __device__ Entries(const void* at, int count) : at_(static_cast<const T*>(at)), count_(count) {
    if (static_cast<int>(threadIdx.x) < count) first_ = at_[threadIdx.x];
  }
  __device__ bool is_empty() const { return count_ == 0; }
  __device__ const T* end() const { return at_ + count_; }
  /// Calls body(entry) for this thread's entries.
  template <class Body>
  __device__ void for_each(Body body) const {
    T entry = first_;
    for (int i = threadIdx.x; i < count_; i += kThreads) {
      if (i >= kThreads) entry = at_[i];
      body(entry);
    }
  }

 private:
  const T* at_;
  int count_;
  T first_ = {};
};

/// Waits for the row's copy, and applies penalties, biases and masks to it. Returns whether this
/// thread masked a logit that makes the row bad.
template <bool kClustered>
__device__ bool adjust(Row<kClustered>& row, const RowParams& params, const int32_t* words,
                       int32_t last_token, const float* raw, float* copy) {
  const Entries<int2> counts(words, params.num_counts);
  const Entries<int2> biases(counts.end(), params.num_biases);
  const Entries<int2> masked_after(biases.end(), params.num_masked_after);
  const Entries<int32_t> masked(masked_after.end(), params.num_masked);
  const Entries<int32_t> allowed(masked.end(), params.num_allowed);
  const int32_t* const allowed_mask = allowed.end();
  row.wait();
  bool is_bad = false;
  const auto mask = [&](int id) {
    if (!row.has(id)) return;
    is_bad |= flags_of(raw[id]) == kRowBad;
    row.at(copy, id) = -INFINITY;
  };
  if (!allowed.is_empty()) {
    row.for_each([&](int id, float) { mask(id); });
    __syncthreads();
    allowed.for_each([&](int32_t id) {
      if (row.has(id)) row.at(copy, id) = raw[id];
    });
    __syncthreads();
  }
  if (params.num_mask_words > 0) {
    row.for_each([&](int id, float) {
      if (id / 32 < params.num_mask_words && ((allowed_mask[id / 32] >> (id % 32)) & 1) == 0)
        mask(id);
    });
    __syncthreads();
  }
  if (last_token != kNoToken || !counts.is_empty()) {
    bool counts_last = false;
    const auto penalize = [&](int id, int in_answer) {
      if (!row.has(id)) return;
      float x = row.at(copy, id);
      x = x > 0 ? __fdiv_rn(x, params.repetition_penalty) : __fmul_rn(x, params.repetition_penalty);
      x = __fadd_rn(x, -__fmul_rn(params.frequency_penalty, static_cast<float>(in_answer)));
      row.at(copy, id) = in_answer > 0 ? __fadd_rn(x, -params.presence_penalty) : x;
    };
    counts.for_each([&](int2 token) {
      const bool is_last = token.x == last_token;
      counts_last |= is_last;
      penalize(token.x, token.y + (is_last ? 1 : 0));
    });
    if (__syncthreads_or(counts_last) == 0) {
      if (threadIdx.x == 0) penalize(last_token, 1);
      __syncthreads();
    }
  }
  if (!biases.is_empty()) {
    biases.for_each([&](int2 token) {
      if (!row.has(token.x)) return;
      float& x = row.at(copy, token.x);
      x = __fadd_rn(x, __int_as_float(token.y));
    });
    __syncthreads();
  }
  masked.for_each(mask);
  masked_after.for_each([&](int2 pair) {
    if (pair.x == last_token) mask(pair.y);
  });
  __syncthreads();
  return is_bad;
}

/// A row's distribution: the values from which a token is drawn.
struct Distribution {
  float best_logit;
  int flags;
  float scale, best;  ///< value = logit * scale
  bool is_greedy;     ///< the best logit is the token, or there is no distribution
};

/// Reads row `row_index`, whose logits are `raw`, and adjusts it. `copy` is used if there are
/// lists, or by a cluster.
template <bool kClustered>
__device__ Distribution distribution(Row<kClustered>& row, const SampleParams& p, int row_index,
                                     const RowParams& params, const float* raw, float* copy) {
  const bool has_lists = params.num_counts + params.num_biases + params.num_masked_after +
                                 params.num_masked + params.num_allowed + params.num_mask_words >
                             0 ||
                         params.last_token != kNoToken;
  row.read(raw, kClustered || has_lists ? copy : nullptr);
  bool is_bad = false;
  if (has_lists) {
    const int32_t last_token = params.last_token == kTokenInFlight
                                   ? p.input_ids[p.sample_rows[row_index]]
                                   : params.last_token;
    is_bad = adjust(row, params, p.words + params.first_word, last_token, raw, copy);
  } else {
    row.wait();
  }
  Distribution d = {};
  d.best_logit = row.scan(is_bad);
  d.flags = flags_of(d.best_logit);
  d.scale = __fdiv_rn(1.0f, params.temperature);
  d.best = __fmul_rn(d.best_logit, d.scale);
  d.is_greedy =
      d.flags != kRowHasFinite || params.temperature < kGreedyTemperature || isinf(d.best);
  return d;
}

/// The tokens that min_p keeps in a row that is not greedy.
template <bool kClustered>
__device__ KeptTokens<kClustered> kept_tokens(Row<kClustered>& row, const RowParams& params,
                                              const Distribution& d, Shared& shared) {
  constexpr float kLowest = -3.402823466e38f;
  float at_least = kLowest;
  if (params.min_p > 0)
    at_least =
        fminf(fmaxf(static_cast<float>(d.best + log(double{params.min_p})), kLowest), d.best);
  return {row, shared, d.scale, d.best, at_least};
}
__device__ bool has_top_k(const RowParams& params, int vocab) {
  return params.top_k > 0 && params.top_k < vocab;
}

/// Draws one row, special[index].
template <bool kClustered>
__device__ void draw_special(const SampleParams& p, const int32_t* special, float* scratch) {
  extern __shared__ __align__(16) float part[];
  __shared__ Shared shared;
  const int index = kClustered ? blockIdx.x / hopper::cluster_size() : blockIdx.x;
  Row<kClustered> row(p.vocab, shared);
  const int row_index = special[index];
  const RowParams& params = p.rows[row_index];
  begin_kernel();
  const float* const raw = p.logits + int64_t{p.gathered ? index : row_index} * p.vocab;
  const Distribution d = distribution(row, p, row_index, params, raw,
                                      kClustered ? part : scratch + int64_t{index} * p.vocab);
  unsigned long long drawn = 0;
  if (!d.is_greedy) {
    KeptTokens<kClustered> tokens = kept_tokens(row, params, d, shared);
    if (has_top_k(params, p.vocab) && tokens.keep_count(params.top_k)) {
      if (!row.is_first_part()) return;
      drawn = tokens.draw_listed(params);
    } else {
      drawn = tokens.draw(params);
    }
  } else if (d.flags == kRowHasFinite) {
    drawn = row.first_with(d.best_logit);
  }
  if (row.is_first_thread()) finish_row(p, row_index, drawn, d.flags);
}

/// Writes the log-probabilities that wanted[index] asks for.
template <bool kClustered>
__device__ void find_logprobs(const SampleParams& p, const LogprobRow* wanted, Logprob* entries) {
  extern __shared__ __align__(16) float part[];
  __shared__ Shared shared;
  const int index = kClustered ? blockIdx.x / hopper::cluster_size() : blockIdx.x;
  Row<kClustered> row(p.vocab, shared);
  begin_kernel();
  const LogprobRow want = wanted[index];
  const float* const logits = p.logits + int64_t{p.gathered ? index : want.row} * p.vocab;
  row.read(logits, kClustered ? part : nullptr);
  const int32_t target =
      want.target == kTokenInFlight ? p.last_tokens[p.rows[want.row].slot] : want.target;
  const float target_logit = logits[target];
  entries += want.first;
  row.wait();
  const float best = row.scan(false);
  if (flags_of(best) != kRowHasFinite) {
    if (!row.is_first_part()) return;
    for (int i = threadIdx.x; i < want.count; i += kThreads)
      entries[i] = {i == 0 ? target : i - 1, NAN, max(i, 1)};
    return;
  }
  unsigned long long sum = 0, num_better = 0;
  row.for_each([&](int id, float x) {
    sum += weight_of(__fadd_rn(x, -best));
    num_better += x > target_logit || (x == target_logit && id < target) ? 1 : 0;
  });
  const ulonglong2 totals = row.totals(sum, num_better);
  const double log_sum = best + log(static_cast<double>(totals.x) / 0x1p40);
  const auto logprob = [&](float x) { return static_cast<float>(x - log_sum); };
  if (row.is_first_thread())
    entries[0] = {target, logprob(target_logit), static_cast<int32_t>(totals.y) + 1};
  if (want.count == 1) return;
  const int k = want.count - 1;
  const int listed = row.list(row.bound_of_best(k), [](float x) { return x; });
  const auto write = [&](int i, unsigned long long key) {
    entries[i + 1] = {id_of(key), logprob(score_of(key)), i + 1};
  };
  if (listed <= kMaxListed) {
    if (row.is_first_part())
      for (int i = threadIdx.x; i < k; i += kThreads) write(i, shared.listed[i]);
    return;
  }
  unsigned long long below = ~0ull;
  for (int i = 0; i < k; ++i) {
    unsigned long long next = 0;
    row.for_each([&](int id, float x) {
      const unsigned long long key = token_key(x, id);
      if (key < below) next = max(next, key);
    });
    below = row.largest(next);
    if (row.is_first_thread()) write(i, below);
  }
}

// -- kernels: clusters exist on Hopper only

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

/// Draws the rows `special`. A cluster of thread blocks, or one thread block, has a row.
template <bool kClustered>
__global__ void __launch_bounds__(kThreads, 2)
    special_kernel(const SampleParams p, const int32_t* special, float* scratch) {
  if constexpr (!kClustered || kHasClusters) draw_special<kClustered>(p, special, scratch);
}

/// Writes the log-probabilities of the rows `wanted`. A cluster of thread blocks, or one thread
/// block, has a row.
template <bool kClustered>
__global__ void __launch_bounds__(kThreads, 2)
    logprobs_kernel(const SampleParams p, const LogprobRow* wanted, Logprob* entries) {
  if constexpr (!kClustered || kHasClusters) find_logprobs<kClustered>(p, wanted, entries);
}

/// Writes the values from which a row is drawn. A thread block has a row in global memory; memory
/// bandwidth bounds it with many rows.
__global__ void __launch_bounds__(kThreads)
    process_kernel(const SampleParams p, const LogprobRow* wanted, float* out) {
  __shared__ Shared shared;
  begin_kernel();
  const int row_index = wanted[blockIdx.x].row;
  const RowParams& params = p.rows[row_index];
  float* const values = out + int64_t{blockIdx.x} * p.vocab;
  Row<false> row(p.vocab, shared);
  const float* const raw = p.logits + int64_t{p.gathered ? int(blockIdx.x) : row_index} * p.vocab;
  const Distribution d = distribution(row, p, row_index, params, raw, values);
  const auto write = [&](auto value) {
    row.for_each([&](int id, float x) {
      if (id < p.vocab) values[id] = value(id, x);
    });
  };
  if (d.is_greedy) return write([](int, float x) { return x; });
  KeptTokens<false> tokens = kept_tokens(row, params, d, shared);
  if (has_top_k(params, p.vocab)) tokens.keep_count(params.top_k);
  if (params.top_p < 1) tokens.keep_share(params.top_p);
  write([&](int id, float x) { return tokens.kept(id, x) ? tokens.value(x) : -INFINITY; });
}

/// A cluster has the fewest thread blocks whose parts have at most this many tokens, so that two
/// fit on a multiprocessor. It has at least two, because st.async is an illegal instruction in a
/// kernel that is launched without clusters.
constexpr int kPartTokens = 19456;

int cluster_for(int vocab) {
  int size = 2;
  while (size < kMaxCluster && Row<true>::width_of_part(vocab, size) > kPartTokens) size *= 2;
  return size;
}
size_t part_bytes(int vocab) {
  return static_cast<size_t>(Row<true>::width_of_part(vocab, cluster_for(vocab))) * sizeof(float);
}

/// Launches a kernel for `count` rows, by clusters or by one thread block for each.
template <auto kClusterKernel, auto kBlockKernel, class... Args>
void launch_rows(Launch where, bool clusters, int vocab, int count, const Args&... args) {
  if (!clusters) return launch(where, kBlockKernel, blocks_for(count), kThreads, 0, args...);
  allow_shared_memory<kClusterKernel>();
  const int size = cluster_for(vocab);
  launch(ClusterLaunch{where, size}, kClusterKernel, blocks_for(count * size), kThreads,
         part_bytes(vocab), args...);
}

}  // namespace

// -- launchers

bool row_fits_in_cluster(int vocab) {
  // A thread block has 227 KB, of which Shared takes 17.
  constexpr size_t kMostBytes = size_t{200} << 10;
  return part_bytes(vocab) <= kMostBytes;
}

void sample_special(Launch where, const SampleParams& params, const int32_t* special, int count,
                    float* scratch) {
  check_args(count > 0 && params.vocab > 0, "sample_special: needs rows and columns");
  launch_rows<special_kernel<true>, special_kernel<false>>(where, scratch == nullptr, params.vocab,
                                                           count, params, special, scratch);
}

void process_logits(Launch where, const SampleParams& params, const LogprobRow* wanted, int count,
                    float* out) {
  check_args(count > 0 && params.vocab > 0, "process_logits: needs rows and columns");
  launch(where, process_kernel, blocks_for(count), kThreads, 0, params, wanted, out);
}

void token_logprobs(Launch where, const SampleParams& params, const LogprobRow* wanted, int count,
                    Logprob* entries, bool clusters) {
  check_args(count > 0 && params.vocab > 0, "token_logprobs: needs rows and columns");
  launch_rows<logprobs_kernel<true>, logprobs_kernel<false>>(where, clusters, params.vocab, count,
                                                             params, wanted, entries);
}

}  // namespace nanovllm::cuda
