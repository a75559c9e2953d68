#pragma once

#include <cstdint>

#include "nanovllm/base/output.h"
#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/sample_row.h"

// The sampler on the GPU, by the rule of ops/sample_row.h; both draw the same tokens from the same
// logits. Read this file first, then sampler.cuh: noise and scores; sampler_plain.cu: greedy rows
// and rows with a temperature; sampler_special.cu with sampler_row.cuh and sampler_filters.cuh:
// filters, penalties and log-probabilities; sample_gemm.cu: plain rows as the epilogue of the GEMM
// that computes the logits.
namespace nanovllm::cuda {

/// A SampleRow in device memory. Its lists are consecutive in an array of 32-bit words: counts as
/// (id, in_answer), biases as (id, float), MaskedAfter, masked ids, allowed ids, allowed mask.
struct RowParams : SamplingScalars {
  int32_t first_word = 0, num_counts = 0, num_biases = 0, num_masked_after = 0, num_masked = 0,
          num_allowed = 0, num_mask_words = 0;
  int32_t last_token = kNoToken;  ///< see SampleRow; kTokenInFlight: the row's input token
  int32_t slot = -1;              ///< the slot that gets the token; -1: none
  int32_t is_plain = 1;           ///< 0: has lists or filters, and sample_special() draws it
};

/// The result of a row.
struct DrawnRow {
  int32_t token = 0;
  int32_t status = 0;  ///< RowStatus
};

/// The state that the thread blocks of a row share while they draw it; zero between launches.
struct RowProgress {
  unsigned long long best = 0;  ///< score and id as one number (token_key() in sampler.cuh)
  int32_t flags = 0, num_done = 0;
  uint32_t floor = 0;  ///< in sample_gemm(): ordered() of the best approximate score so far
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
  // Only sample_special() and process_logits() need these.
  const int32_t *input_ids = nullptr, *sample_rows = nullptr;  // [T], [R], see Step
  const int32_t* words = nullptr;                              ///< the rows' lists
  bool gathered = false;  ///< the logits are [count, vocab], of the named rows only
};

/// Draws the plain rows, which are greedy or have only a temperature.
void sample_plain(Launch where, const SampleParams& params, RowProgress* progress);
/// The numbers of rows for which sample_gemm() is used. For fewer rows two kernels are as fast.
inline constexpr int kFewestDrawn = 4, kMostDrawn = 64;
/// Whether sample_gemm() can compute this GEMM.
bool supports_sample_gemm(const GemmArgs& args, DType dtype);
/// Computes, on Hopper, the GEMM of the logits of normed rows, and sample_plain(), in one kernel.
/// All rows are plain; args.out and sample.logits are not used.
void sample_gemm(Launch where, const GemmArgs& args, const SampleParams& sample,
                 RowProgress* progress);
/// With several ranks, finishes the rows of sample_plain() and sample_gemm() with what all ranks
/// found [world, R or more].
void draw_found(Launch where, const SampleParams& params, Tensor found);
/// Whether a row's logits fit in the shared memory of a cluster, so that `scratch` is not needed
/// below. Only on Hopper.
bool row_fits_in_cluster(int vocab);
/// Draws the rows with filters or lists, whose indices are `special` [count] in device memory.
/// `scratch` [count, vocab] is for adjusted logits; null means that clusters are used.
void sample_special(Launch where, const SampleParams& params, const int32_t* special, int count,
                    float* scratch);

/// The log-probabilities that a row wants.
struct LogprobRow {
  int32_t row;                      ///< row of the logits
  int32_t target = kTokenInFlight;  ///< kTokenInFlight: the last token of the row's slot
  int32_t count = 0;                ///< entries: the target, then the best count - 1 tokens
  int32_t first = 0;                ///< index of its entries
};
/// Writes to out [count, vocab] the values from which the rows `wanted` [count] are drawn: those
/// after lists, temperature and filters, with -infinity for tokens that cannot be drawn. To a
/// greedy row only the lists are applied.
void process_logits(Launch where, const SampleParams& params, const LogprobRow* wanted, int count,
                    float* out);
/// Computes the log-probabilities of the rows `wanted` [count], in device memory, under
/// params.logits. Writes them to `entries`, which may be the host's memory. `clusters` is
/// row_fits_in_cluster() on Hopper, else false.
void token_logprobs(Launch where, const SampleParams& params, const LogprobRow* wanted, int count,
                    Logprob* entries, bool clusters);

}  // namespace nanovllm::cuda
