// The sampler's passes over the vocabulary for one instruction set. No multiplication and addition
// of floats may become one fused operation (CMakeLists.txt has the compiler option), so that every
// instruction set computes the same bits.

#include "nanovllm/ops/cpu/kernels/sampler.h"
#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

using U64 = uint64_t __attribute__((vector_size(4 * kLanes)));

constexpr float kInfinity = __builtin_inff();

/// The chunk's kChunk logits; those after the vocabulary's end are -infinity.
inline const float* chunk_logits(const RowView& row, int64_t chunk, float* padded) {
  const int64_t first = chunk * kChunk, count = row.vocab - first;
  if (count >= kChunk) return row.logits + first;
  for (int64_t i = 0; i < kChunk; ++i) padded[i] = i < count ? row.logits[first + i] : -kInfinity;
  return padded;
}

/// A bit for each lane whose sign bit is set.
inline uint32_t sign_bits(U32 x) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(x));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(x)));
#else
  return static_cast<uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(x)));
#endif
}

bool scan(const RowView& row, float* chunk_max) {
  U32 bad = {};
  float padded[kChunk];
  for (int64_t chunk = 0; chunk < num_chunks(row.vocab); ++chunk) {
    const float* x = chunk_logits(row, chunk, padded);
    F32 top = broadcast(-kInfinity);
    for (int64_t i = 0; i < kChunk; i += kLanes) {
      const F32 v = load(x + i);
      bad |= ~reinterpret_cast<U32>(v < kInfinity);
      top = v > top ? v : top;
    }
    float best = top[0];
    for (int i = 1; i < kLanes; ++i) best = top[i] > best ? top[i] : best;
    chunk_max[chunk] = best;
  }
  return sign_bits(bad) == 0;
}

// -- weights

/// e^x for x <= 0 within two units in the last place; x below -60 counts as -60. The rest of Cody
/// and Waite's reduction goes into a Taylor series.
inline F32 exp_nonpositive(F32 x) {
  x = x > -60.0f ? x : broadcast(-60.0f);
  const F32 shifted =
      x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the integer part in the low bits
  const F32 n = shifted - 12582912.0f;
  const F32 r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  F32 p = r * (1.0f / 5040) + (1.0f / 720);
  p = p * r + (1.0f / 120);
  p = p * r + (1.0f / 24);
  p = p * r + (1.0f / 6);
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  return reinterpret_cast<F32>(reinterpret_cast<U32>(p) + (reinterpret_cast<U32>(shifted) << 23));
}

/// The sum of the kChunk numbers from 0 to 1, each rounded to the weights' unit: adding 2^12 leaves
/// a double's last place at 2^-40.
inline uint64_t sum_weights(const float* x) {
  uint64_t total = 0;
  for (int64_t i = 0; i < kChunk; ++i)
    total += __builtin_bit_cast(uint64_t, static_cast<double>(x[i]) + 0x1p12);
  return total - kChunk * __builtin_bit_cast(uint64_t, 0x1p12);
}

Mass mass(const RowView& row, float best, float at_least) {
  Mass total = {0, 0};
  float padded[kChunk], powers[kChunk];
  for (int64_t chunk = 0; chunk < num_chunks(row.vocab); ++chunk) {
    if (!(row.chunk_max[chunk] * row.scale >= at_least)) continue;
    const float* x = chunk_logits(row, chunk, padded);
    for (int64_t i = 0; i < kChunk; i += kLanes) {
      const F32 value = load(x + i) * row.scale;
      const auto taken = value >= at_least;
      store(powers + i, taken ? exp_nonpositive(value - best) : F32{});
      total.count += __builtin_popcount(sign_bits(reinterpret_cast<U32>(taken)));
    }
    total.weight += sum_weights(powers);
  }
  return total;
}

void weigh(const Candidate* candidates, int64_t count, float best, uint64_t* weights) {
  for (int64_t i = 0; i < count; ++i) {
    const float power = exp_nonpositive(broadcast(candidates[i].value - best))[0];
    weights[i] = __builtin_bit_cast(uint64_t, static_cast<double>(power) + 0x1p12) -
                 __builtin_bit_cast(uint64_t, 0x1p12);
  }
}

// -- candidates

int64_t collect(const RowView& row, float low, float high, Candidate* out) {
  int64_t count = 0;
  float padded[kChunk];
  for (int64_t chunk = 0; chunk < num_chunks(row.vocab); ++chunk) {
    if (!(row.chunk_max[chunk] * row.scale >= low)) continue;
    const float* x = chunk_logits(row, chunk, padded);
    for (int64_t i = 0; i < kChunk; i += kLanes) {
      const F32 value = load(x + i) * row.scale;
      for (uint32_t hits = sign_bits(reinterpret_cast<U32>((value >= low) & (value < high)));
           hits != 0; hits &= hits - 1) {
        const int64_t at = i + __builtin_ctz(hits);
        const int64_t id = chunk * kChunk + at;
        if (id < row.vocab) out[count++] = {x[at] * row.scale, static_cast<int32_t>(id)};
      }
    }
  }
  return count;
}

int64_t count_better(const RowView& row, int32_t id) {
  const float logit = row.logits[id];
  int64_t count = 0;
  for (int64_t i = 0; i < id; ++i) count += row.logits[i] >= logit;
  for (int64_t i = id + 1; i < row.vocab; ++i) count += row.logits[i] > logit;
  return count;
}

// -- draw

/// The low half of every lane times b.
inline U64 multiply_low(U64 a, uint32_t b) {
#if defined(__AVX512F__)
  return reinterpret_cast<U64>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<U64>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(b)));
#else
  return reinterpret_cast<U64>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), _mm_set1_epi64x(b)));
#endif
}

/// The words of kLanes / 2 counters from `first` on, which belong to 2 * kLanes tokens, in the
/// order of the tokens.
inline void random_words(uint64_t first, const DrawArgs& args, uint32_t* words) {
  constexpr uint64_t kCounters = kLanes / 2;
  const U64 zero = {};
  U64 lane, low, high;  // low, high: interleave the first and the second halves of two vectors
  for (uint64_t i = 0; i < kCounters; ++i) {
    lane[i] = i;
    low[i] = i / 2 + i % 2 * kCounters;
    high[i] = low[i] + kCounters / 2;
  }
  U64 counter[4] = {lane + first, zero + args.position, zero + args.choice, zero};
  philox4x32_10(counter, args.key[0], args.key[1],
                [](U64 a, uint32_t b) { return multiply_low(a, b); });
  const U64 words01 = (counter[0] & 0xffffffff) | counter[1] << 32;
  const U64 words23 = (counter[2] & 0xffffffff) | counter[3] << 32;
  const U64 ordered[2] = {__builtin_shuffle(words01, words23, low),
                          __builtin_shuffle(words01, words23, high)};
  __builtin_memcpy(words, ordered, sizeof ordered);
}

/// An upper bound of the noise of x. The noise is below -log(u), and log2 of a float is at least
/// its bits as a number, scaled (exact at powers of two, elsewhere up to 0.09 below).
inline F32 noise_bound(U32 x) {
  using I32 = int32_t __attribute__((vector_size(4 * kLanes)));
  constexpr float kLn2 = 0.693147181f;
  constexpr float kRounding = 1e-4f;
  const F32 half = __builtin_convertvector(reinterpret_cast<I32>(x >> 1), F32);
  const F32 log2_half = __builtin_convertvector(reinterpret_cast<I32>(half), F32) * 0x1p-23f;
  return (158.0f * kLn2 + kRounding) - log2_half * kLn2;
}

/// The largest noise there is, x = 0: -log(-log1p(-2^-33)) is 22.874.
constexpr float kMaxNoise = 22.9f;

int32_t draw(const RowView& row, const DrawArgs& args) {
  float best_score = -kInfinity;
  int32_t best_id = INT32_MAX;
  float padded[kChunk];
  uint32_t words[kChunk];
  const auto visit = [&](int64_t chunk) {
    const float chunk_best = row.chunk_max[chunk] * row.scale;
    if (!(chunk_best >= args.worst.value && chunk_best + kMaxNoise >= best_score)) return;
    const float* x = chunk_logits(row, chunk, padded);
    for (int64_t i = 0; i < kChunk; i += 2 * kLanes)
      random_words(static_cast<uint64_t>(chunk * kChunk + i) / 4, args, words + i);
    for (int64_t i = 0; i < kChunk; i += kLanes) {
      U32 word;
      __builtin_memcpy(&word, words + i, sizeof word);
      const F32 value = load(x + i) * row.scale;
      const auto hopeful = (value >= args.worst.value) & (value + noise_bound(word) >= best_score);
      for (uint32_t hits = sign_bits(reinterpret_cast<U32>(hopeful)); hits != 0; hits &= hits - 1) {
        const int64_t at = i + __builtin_ctz(hits);
        const auto id = static_cast<int32_t>(chunk * kChunk + at);
        const float token_value = x[at] * row.scale;
        if (token_value == args.worst.value && id > args.worst.id) continue;
        const float score = token_value + args.noise(words[at]);
        if (score > best_score || (score == best_score && id < best_id)) {
          best_score = score;
          best_id = id;
        }
      }
    }
  };
  visit(args.first_chunk);
  for (int64_t chunk = 0; chunk < num_chunks(row.vocab); ++chunk)
    if (chunk != args.first_chunk) visit(chunk);
  return best_id;
}

}  // namespace

extern const SamplerKernels kSampler = {scan, mass, weigh, collect, draw, count_better};

}  // namespace nanovllm::cpu::NANOVLLM_ISA
