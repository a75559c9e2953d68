#pragma once

#include <cstdint>

namespace nanovllm::cpu {

/// Tokens are looked at in chunks of this many. The largest logit of each, found in the first pass,
/// lets later passes leave most of a row alone.
constexpr int64_t kChunk = 64;
static constexpr int64_t num_chunks(int64_t vocab) { return (vocab + kChunk - 1) / kChunk; }

/// A row of logits; a token's value is logit * scale.
struct RowView {
  const float* logits;     // [vocab]
  const float* chunk_max;  // [num_chunks(vocab)]
  int64_t vocab;
  float scale;
};

struct Candidate {
  float value;
  int32_t id;
};

/// Tokens at or above a value: how many, and their weights' sum (sampler.h defines a weight).
struct Mass {
  int64_t count;
  uint64_t weight;
};
constexpr double kWeightOne = 0x1p40;

/// What decides a draw. Tokens worse than `worst` cannot be drawn.
struct DrawArgs {
  Candidate worst;
  uint32_t key[2], position, choice;
  int64_t first_chunk;         // looked at first: a good score early spares work
  float (*noise)(uint32_t x);  // exact, called for few tokens
};

struct SamplerKernels {
  /// Fills chunk_max. False where a logit is NaN or +infinity.
  bool (*scan)(const float* logits, int64_t vocab, float* chunk_max);
  Mass (*mass)(const RowView& row, float best, float at_least);
  /// weights[i] of candidates[i].
  void (*weigh)(const Candidate* candidates, int64_t count, float best, uint64_t* weights);
  /// The tokens with low <= value < high, in the order of their ids; returns how many.
  int64_t (*collect)(const RowView& row, float low, float high, Candidate* out);
  int32_t (*draw)(const RowView& row, const DrawArgs& args);
  /// Tokens with a larger logit, or the same and a lower id.
  int64_t (*count_better)(const RowView& row, int32_t id);
};

extern const SamplerKernels kSamplerPlain, kSamplerAvx2, kSamplerAvx512;

}  // namespace nanovllm::cpu
