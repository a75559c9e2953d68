#pragma once

#include <cstdint>

// Sources compiled for several instruction sets include this: its functions have internal linkage.

namespace nanovllm::cpu {

/// The kernels read tokens in chunks of this many. The largest logit of each chunk, found in the
/// first pass, lets later passes skip most of a row.
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

/// The number of the tokens at or above a value, and the sum of their weights (ops/sample_row.h).
struct Mass {
  int64_t count;
  uint64_t weight;
};
constexpr double kWeightOne = 0x1p40;

/// The parameters of a draw. Tokens worse than `worst` cannot be drawn.
struct DrawArgs {
  Candidate worst;
  uint32_t key[2], position, choice;
  int64_t first_chunk;         // is read first, because an early good score saves other chunks
  float (*noise)(uint32_t x);  // exact, called for few tokens
};

/// Philox4x32-10, a generator without state: turns a counter of four words into four random words.
/// A Word is a 64-bit integer, or a vector of them, that holds a 32-bit word in its low half; the
/// high half is anything, before and after. multiply(a, b) is the whole product of two low halves.
/// Source: Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
template <class Word, class Multiply>
static inline void philox4x32_10(Word (&counter)[4], uint32_t key0, uint32_t key1,
                                 Multiply multiply) {
  for (int round = 0; round < 10; ++round) {
    const Word a = multiply(counter[0], 0xd2511f53);
    const Word b = multiply(counter[2], 0xcd9e8d57);
    counter[0] = (b >> 32) ^ counter[1] ^ key0;
    counter[1] = b;
    counter[2] = (a >> 32) ^ counter[3] ^ key1;
    counter[3] = a;
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
}

/// Kernels of one instruction set.
struct SamplerKernels {
  /// Fills chunk_max, which is row.chunk_max. Returns false if a logit is NaN or +infinity.
  bool (*scan)(const RowView& row, float* chunk_max);
  Mass (*mass)(const RowView& row, float best, float at_least);
  /// Sets weights[i] to the weight of candidates[i].
  void (*weigh)(const Candidate* candidates, int64_t count, float best, uint64_t* weights);
  /// Writes the tokens with low <= value < high, in the order of their ids; returns how many.
  int64_t (*collect)(const RowView& row, float low, float high, Candidate* out);
  int32_t (*draw)(const RowView& row, const DrawArgs& args);
  /// How many tokens have a larger logit than token `id`, or the same logit and a lower id.
  int64_t (*count_better)(const RowView& row, int32_t id);
};

}  // namespace nanovllm::cpu
