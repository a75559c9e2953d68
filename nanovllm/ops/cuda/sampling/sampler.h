#pragma once

#include <cstdint>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/sample_row.h"

// The sampler on the GPU, by the rule of ops/sample_row.h; both draw the same tokens from the same
// logits. Read this file first, then sampler.cuh: noise and scores; sampler_plain.cu: greedy rows
// and rows with a temperature; sampler_special.cu and sampler_filters.cuh: filters, penalties and
// log-probabilities; sample_gemm.cu: plain rows as the epilogue of the GEMM that computes the
// logits.
namespace nanovllm::cuda {

/// A SampleRow in device memory. Its lists are consecutive in an array of 32-bit words: counts as
/// (id, in_answer), biases as (id, float), masked ids, allowed ids.
struct RowParams : SamplingScalars {
  int32_t first_word = 0, num_counts = 0, num_biases = 0, num_masked = 0, num_allowed = 0;
  int32_t slot = -1;     ///< the slot that gets the token; -1: none
  int32_t is_plain = 1;  ///< 0: lists or filters, drawn by sample_special()
};

/// The result of a row.
struct DrawnRow {
  int32_t token = 0;
  int32_t status = 0;  ///< RowStatus
};

/// What the thread blocks of a row share while they draw it; zero between launches.
struct RowProgress {
  unsigned long long best = 0;  ///< score and id as one number (token_key() in sampler.cuh)
  int32_t flags = 0, num_done = 0;
  uint32_t floor = 0;  ///< of sample_gemm(): ordered() of the best approximate score so far
};

/// The best token that one rank found for a row, and the row's flags.
using FoundRow = unsigned long long;

struct SampleParams {
  const float* logits;               // [R, vocab]
  const RowParams* rows;             // [R]
  DrawnRow* const* drawn = nullptr;  // [1], the address of [R], which may be the host's memory
  int32_t* last_tokens = nullptr;    // [max_num_seqs]
  int num_rows, vocab;
  // With several ranks: the id of this rank's first column, a multiple of 4, and where the rank
  // writes what it found, for draw_found().
  int first_id = 0;
  FoundRow* found = nullptr;  // [R]
  bool gathered = false;      ///< sample_special's logits are [count, vocab], of its rows only
};

/// Draws the plain rows: greedy, or with a temperature alone.
void sample_plain(Launch where, const SampleParams& params, RowProgress* progress);
/// The numbers of rows for which sample_gemm() is used. For fewer rows two kernels are as fast.
inline constexpr int kFewestDrawn = 4, kMostDrawn = 64;
/// Whether sample_gemm() can compute this GEMM.
bool supports_sample_gemm(const GemmArgs& args, DType dtype);
/// On Hopper: the GEMM that computes the logits of normed rows, then sample_plain(), in one kernel.
/// All rows are plain; args.out and sample.logits are not used.
void sample_gemm(Launch where, const GemmArgs& args, const SampleParams& sample,
                 RowProgress* progress);
/// With several ranks, finishes the rows of sample_plain() and sample_gemm() with what all ranks
/// found [world, R or more].
void draw_found(Launch where, const SampleParams& params, Tensor found);
/// Draws the rows with filters or lists, whose indices are `special` [count] in device memory.
/// `scratch` [count, vocab] is for adjusted logits; `words` holds the rows' lists.
void sample_special(Launch where, const SampleParams& params, const int32_t* special, int count,
                    const int32_t* words, float* scratch);

/// Writes to out [R, vocab] what the rows are drawn from: values after lists, temperature and
/// filters, -infinity for tokens that cannot be drawn. A greedy row is only adjusted. Of `params`
/// it reads logits, rows, num_rows and vocab.
void process_logits(Launch where, const SampleParams& params, const int32_t* words, float* out);

struct LogprobParams {
  const float* logits;     // [R, vocab]
  const int32_t* targets;  // [R]
  int32_t* ids;            // [R, k + 1]
  float* logprobs;         // [R, k + 1]
  int32_t* ranks;          // [R]
  int num_rows, vocab, k;
};
/// Backend::token_logprobs on device memory.
void token_logprobs(Launch where, const LogprobParams& params);

}  // namespace nanovllm::cuda
