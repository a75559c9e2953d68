#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "nanovllm/ops/batch.h"
#include "nanovllm/ops/sample_row.h"

namespace nanovllm {

/// A sequence that computes new tokens in this step. Its ids are the next num_tokens entries of
/// StepInput::token_ids.
struct RowInput {
  int32_t slot = 0;
  int32_t start = 0;  ///< index of the first new token in the sequence
  int32_t num_tokens = 0;
  int32_t store = 1;          ///< 0: K and V are in the cache already and shared; not written again
  int32_t want_logprobs = 0;  ///< 1: log-probabilities of the tokens that follow each of these
  int32_t next_token = -1;  ///< with want_logprobs: the known token after the last of these, or -1
};

/// A sequence for which a token is sampled, from the logits of the last token of rows[row]. The
/// choices of one prompt share a row.
struct SampleInput {
  uint64_t sequence = 0;  ///< names the row in the output
  int32_t slot = 0;
  int32_t row = 0;
};

/// The sequence that a slot holds from now on; sent when the sequence gets the slot. Its lists are
/// the next entries of StepInput::setup_ids, in the order of their counts here, and of
/// StepInput::biases.
struct SlotSetup {
  uint64_t seed = 0;
  int32_t slot = 0;
  float temperature = 1;
  float top_p = 1;
  float min_p = 0;
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  int32_t top_k = 0;
  int32_t choice = 0;
  int32_t num_logprobs = -1;  ///< best alternatives for each drawn token; -1: none are wanted
  int32_t num_prompt_logprobs = -1;  ///< the same for prompt tokens
  int32_t masked_before = 0;         ///< masked ids cannot be drawn for an index below this
  int32_t num_masked_ids = 0;
  int32_t num_allowed_ids = 0;   ///< 0: all tokens may be drawn
  int32_t num_bad_word_ids = 0;  ///< each word is the number of its tokens and their ids
  int32_t num_tokens = 0;  ///< of the sequence, where penalties or bad words need them, else 0
  int32_t num_prompt_tokens = 0;  ///< of those
  int32_t num_biases = 0;

  bool has_penalties() const {
    return presence_penalty != 0 || frequency_penalty != 0 || repetition_penalty != 1;
  }
};

/// Block `from` is copied onto `to` when the step's forward pass is done.
struct BlockCopy {
  int32_t from = 0, to = 0;
};

/// The arrays of a step, in the order in which they lie in its buffer. Array<T> is a vector, a span
/// or their length.
template <template <class> class Array>
struct StepArraysOf {
  Array<SampleInput> samples = {};
  Array<SlotSetup> setups = {};
  Array<RowInput> rows = {};
  Array<BlockUpdate> block_updates = {};
  Array<BlockCopy> copies = {};
  Array<int32_t> token_ids = {}, setup_ids = {};
  Array<TokenBias> biases = {};

  template <class Self>
  static auto all(Self& s) {
    return std::tie(s.samples, s.setups, s.rows, s.block_updates, s.copies, s.token_ids,
                    s.setup_ids, s.biases);
  }
};
template <class T>
using StepVector = std::vector<T>;
template <class T>
using StepSpan = std::span<const T>;
template <class T>
using StepCount = uint32_t;

/// The input of a step as one flat buffer without pointers: a header, then the arrays. What lasts
/// (block tables, sampling parameters, last tokens) is kept by the ranks; this holds what changed.
class StepInput {
 public:
  struct Header {
    uint64_t bytes = 0;
    uint64_t step = 0;
    StepArraysOf<StepCount> counts;
  };

  /// A view of `buffer`, which must outlive it. Throws std::logic_error if the sizes disagree.
  explicit StepInput(std::span<const std::byte> buffer);

  const Header& header() const { return *reinterpret_cast<const Header*>(buffer_.data()); }
  std::span<const std::byte> bytes() const { return buffer_; }
  std::span<const SampleInput> samples() const { return arrays_.samples; }
  std::span<const SlotSetup> setups() const { return arrays_.setups; }
  std::span<const RowInput> rows() const { return arrays_.rows; }
  std::span<const BlockUpdate> block_updates() const { return arrays_.block_updates; }
  std::span<const BlockCopy> copies() const { return arrays_.copies; }
  std::span<const int32_t> token_ids() const { return arrays_.token_ids; }
  std::span<const int32_t> setup_ids() const { return arrays_.setup_ids; }
  std::span<const TokenBias> biases() const { return arrays_.biases; }

 private:
  std::span<const std::byte> buffer_;
  StepArraysOf<StepSpan> arrays_;
};

/// The arrays of a StepInput while it is put together; reused from step to step.
struct StepArrays : StepArraysOf<StepVector> {
  void clear();
  /// Writes header and arrays into `buffer` and returns the view of it.
  StepInput write(uint64_t step, std::vector<std::byte>& buffer) const;
};

enum class SampleStatus : int32_t { kOk = 0, kNotFinite = 1 };

struct LogprobEntry {
  int32_t id = 0;
  float logprob = 0;
  int32_t rank = 0;
};

/// What was sampled for a SampleInput. Its log-probabilities are the next num_logprobs entries of
/// StepOutput::logprobs.
struct SampleOutput {
  uint64_t sequence = 0;
  int32_t num_tokens = 0;  ///< 0 (nothing drawn) or 1
  int32_t token_id = 0;
  SampleStatus status = SampleStatus::kOk;
  int32_t num_logprobs = 0;
};

/// Log-probabilities of the token at `position` of the sequence of rows[row]; entries as in
/// SampleOutput.
struct PromptLogprobOutput {
  int32_t row = 0;
  int32_t position = 0;
  int32_t num_logprobs = 0;
};

/// What a step returns: a SampleOutput for each SampleInput, in the same order, and prompt
/// log-probabilities where they were asked for.
struct StepOutput {
  uint64_t step = 0;
  std::vector<SampleOutput> samples;
  std::vector<LogprobEntry> logprobs;  ///< of samples, in their order
  std::vector<PromptLogprobOutput> prompt;
  std::vector<LogprobEntry> prompt_logprobs;  ///< of prompt, in its order

  void clear();
};

}  // namespace nanovllm
