#define NANOVLLM_ISA avx512bf16
#include "nanovllm/ops/cpu/attention_kernels.inc"

namespace nanovllm::cpu {
using namespace avx512bf16;
namespace {

/// Products of bfloat16 queries and keys, two dimensions at a time. They are exact and their sums
/// float32, as in FloatDot.
struct Bf16Dot {
  static void pack(const KeyBlockArgs& a, int first, int end) {
    for (int v = 0; v < kVectors && first + v * kLanes < end; ++v) {
      const Bf16* rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int key = first + v * kLanes + i;
        rows[i] = key_row<Bf16>(a.keys, key < end ? key : end - 1, a.head_dim);
      }
      for (int d = 0; d < a.head_dim; d += 2 * kLanes) {
        F32 pairs[kLanes];
        for (int i = 0; i < kLanes; ++i) pairs[i] = _mm512_loadu_ps(rows[i] + d);
        transpose(pairs);
        for (int i = 0; i < kLanes; ++i)
          store(a.panel + (d / 2 + i) * kPanelKeys + v * kLanes, pairs[i]);
      }
    }
  }

  template <int kNumRows>
  static void run(const KeyBlockArgs& a, int row, float* scores) {
    const Bf16* q = static_cast<const Bf16*>(a.queries) + row * a.head_dim;
    F32 acc[kNumRows][kVectors] = {};
    for (int d = 0; d < a.head_dim; d += 2) {
      F32 k[kVectors];
      for (int v = 0; v < kVectors; ++v) k[v] = load(a.panel + d / 2 * kPanelKeys + v * kLanes);
      for (int r = 0; r < kNumRows; ++r) {
        int32_t pair;
        __builtin_memcpy(&pair, q + r * a.head_dim + d, sizeof pair);
        const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        for (int v = 0; v < kVectors; ++v)
          acc[r][v] = _mm512_dpbf16_ps(acc[r][v], x, reinterpret_cast<__m512bh>(k[v]));
      }
    }
    for (int r = 0; r < kNumRows; ++r)
      for (int v = 0; v < kVectors; ++v) store(scores + r * kKeyBlock + v * kLanes, acc[r][v]);
  }
};

void copy_queries(void* to, const void* from, int head_dim) {
  __builtin_memcpy(to, from, static_cast<size_t>(head_dim) * sizeof(Bf16));
}

}  // namespace

const AttentionKernels kAttentionAvx512Bf16 = {
    .head_dim_multiple = 2 * kLanes,
    .query_bytes = sizeof(Bf16),
    .load_queries = copy_queries,
    .key_block = key_block<Bf16, Bf16Dot>,
    .join = join,
    .store_row = store_row<Bf16>,
};

}  // namespace nanovllm::cpu
