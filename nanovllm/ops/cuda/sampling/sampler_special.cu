#include "nanovllm/ops/cuda/sampling/sampler_filters.cuh"

// Rows with penalties, biases, masks or filters, and log-probabilities: one thread block for each
// row makes several passes over its logits (sampler_filters.cuh).
namespace nanovllm::cuda {
using namespace filters;
namespace {

// -- kernels

/// Copies the row and applies penalties, biases and masks. No list has an id twice.
__device__ void adjust(int vocab, const RowParams& params, const int32_t* words, const float* raw,
                       float* copy) {
  const bool only_allowed = params.num_allowed > 0;
  const int2* counts = reinterpret_cast<const int2*>(words);
  const int2* biases = counts + params.num_counts;
  const int32_t* masked = reinterpret_cast<const int32_t*>(biases + params.num_biases);
  const int32_t* allowed = masked + params.num_masked;
  // Ids of a list may be outside of the vocabulary.
  const auto in_vocabulary = [&](int id) { return 0 <= id && id < vocab; };
  for (int id = threadIdx.x; id < vocab; id += kThreads)
    copy[id] = only_allowed ? -INFINITY : raw[id];
  __syncthreads();
  for (int i = threadIdx.x; i < params.num_allowed; i += kThreads)
    if (in_vocabulary(allowed[i])) copy[allowed[i]] = raw[allowed[i]];
  __syncthreads();
  for (int i = threadIdx.x; i < params.num_counts; i += kThreads) {
    const int2 token = counts[i];
    if (!in_vocabulary(token.x)) continue;
    float x = copy[token.x];
    x = x > 0 ? __fdiv_rn(x, params.repetition_penalty) : __fmul_rn(x, params.repetition_penalty);
    x = __fadd_rn(x, -__fmul_rn(params.frequency_penalty, static_cast<float>(token.y)));
    copy[token.x] = token.y > 0 ? __fadd_rn(x, -params.presence_penalty) : x;
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

/// A row's distribution: the adjusted logits, and the values from which a token is drawn.
struct Distribution {
  const float* logits;
  unsigned long long best_logit;
  int flags;
  float scale, best;  ///< value = logit * scale
  bool is_greedy;     ///< the best logit is the token, or there is no distribution
};

/// `copy` gets the adjusted logits if there are lists.
__device__ Distribution distribution(const RowParams& params, const int32_t* words,
                                     const float* logits, int vocab, float* copy, Shared& shared) {
  Distribution d = {.logits = logits};
  d.flags = Row(logits, vocab, shared).scan(d.best_logit);
  const bool has_lists =
      params.num_counts + params.num_biases + params.num_masked + params.num_allowed > 0;
  if (d.flags == kRowHasFinite && has_lists) {
    adjust(vocab, params, words + params.first_word, logits, copy);
    d.logits = copy;
    d.flags = Row(copy, vocab, shared).scan(d.best_logit);
  }
  d.scale = __fdiv_rn(1.0f, params.temperature);
  d.best = __fmul_rn(score_of(d.best_logit), d.scale);
  d.is_greedy =
      d.flags != kRowHasFinite || params.temperature < kGreedyTemperature || isinf(d.best);
  return d;
}

/// The tokens that the filters keep in a row that is not greedy.
__device__ KeptTokens kept_tokens(Row& row, const RowParams& params, const Distribution& d,
                                  int vocab, Shared& shared) {
  constexpr float kLowest = -3.402823466e38f;
  float at_least = kLowest;
  if (params.min_p > 0)
    at_least =
        fminf(fmaxf(static_cast<float>(d.best + log(double{params.min_p})), kLowest), d.best);
  KeptTokens tokens(row, shared, d.scale, d.best, at_least);
  const bool has_top_k = params.top_k > 0 && params.top_k < vocab;
  if (has_top_k || params.top_p < 1) tokens.fill_histogram();
  if (has_top_k) tokens.keep_count(static_cast<unsigned long long>(params.top_k));
  if (params.top_p < 1) tokens.keep_share(params.top_p);
  return tokens;
}

__global__ void __launch_bounds__(kThreads)
    special_kernel(const SampleParams p, const int32_t* special, const int32_t* words,
                   float* scratch) {
  __shared__ Shared shared;
  begin_kernel();
  const int row_index = special[blockIdx.x];
  const RowParams params = p.rows[row_index];
  const Distribution d = distribution(
      params, words, p.logits + int64_t{p.gathered ? int(blockIdx.x) : row_index} * p.vocab,
      p.vocab, scratch + int64_t{blockIdx.x} * p.vocab, shared);
  if (d.is_greedy) {
    if (threadIdx.x == 0) finish_row(p, row_index, d.best_logit, d.flags);
    return;
  }
  Row row(d.logits, p.vocab, shared);
  const KeptTokens tokens = kept_tokens(row, params, d, p.vocab, shared);
  BestToken token;
  for (int group = threadIdx.x * 4; group < p.vocab; group += kThreads * 4) {
    const uint4 words4 = noise_words(params, group);
    const uint32_t word[4] = {words4.x, words4.y, words4.z, words4.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (const int id = group + i; id < p.vocab && tokens.kept(id, d.logits[id]))
        token.add(tokens.value(d.logits[id]), word[i], id);
  }
  const unsigned long long drawn = row.largest(token.key());
  if (threadIdx.x == 0) finish_row(p, row_index, drawn, d.flags);
}

__global__ void __launch_bounds__(kThreads)
    process_kernel(const SampleParams p, const int32_t* words, float* out) {
  __shared__ Shared shared;
  begin_kernel();
  const RowParams params = p.rows[blockIdx.x];
  const int64_t first = int64_t{blockIdx.x} * p.vocab;
  float* const values = out + first;
  const Distribution d = distribution(params, words, p.logits + first, p.vocab, values, shared);
  Row row(d.logits, p.vocab, shared);
  if (d.is_greedy) return row.for_each([&](int id, float x) { values[id] = x; });
  const KeptTokens tokens = kept_tokens(row, params, d, p.vocab, shared);
  __syncthreads();
  row.for_each(
      [&](int id, float x) { values[id] = tokens.kept(id, x) ? tokens.value(x) : -INFINITY; });
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
  const float best_logit = score_of(best);
  const unsigned long long target_key = token_key(logits[target], target);
  unsigned long long sum = 0, num_better = 0;
  row.for_each([&](int id, float x) {
    if (x > -INFINITY) sum += weight_of(__fadd_rn(x, -best_logit));
    num_better += token_key(x, id) > target_key ? 1 : 0;
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
      const unsigned long long key = token_key(x, id);
      if (key < below) next = max(next, key);
    });
    below = row.largest(next);
    if (threadIdx.x == 0) {
      ids[i] = id_of(below);
      logprobs[i] = logprob(score_of(below));
    }
  }
}

}  // namespace

// -- launchers

void sample_special(Launch where, const SampleParams& params, const int32_t* special, int count,
                    const int32_t* words, float* scratch) {
  check_args(count > 0 && params.vocab > 0, "sample_special: needs rows and columns");
  launch(where, special_kernel, blocks_for(count), kThreads, 0, params, special, words, scratch);
}

void process_logits(Launch where, const SampleParams& params, const int32_t* words, float* out) {
  check_args(params.num_rows > 0 && params.vocab > 0, "process_logits: needs rows and columns");
  launch(where, process_kernel, blocks_for(params.num_rows), kThreads, 0, params, words, out);
}

void token_logprobs(Launch where, const LogprobParams& params) {
  check_args(params.num_rows > 0 && params.k >= 0 && params.k <= params.vocab,
             "token_logprobs: needs rows, and k must be at most the vocabulary");
  launch(where, logprobs_kernel, blocks_for(params.num_rows), kThreads, 0, params);
}

}  // namespace nanovllm::cuda
