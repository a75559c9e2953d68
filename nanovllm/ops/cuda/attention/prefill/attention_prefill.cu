#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/attention/dispatch.cuh"
#include "nanovllm/ops/cuda/device/mma.cuh"

//   out[i, h] = sum_j softmax(scale q[i, h] . k[j]) v[j]
// over the paged keys j up to new token i's own (causal attention), for sequences with several new
// tokens, on every GPU from Ampere on. A thread block computes one query head of kRows tokens, 16
// in each warp, for the keys that the last token sees, with an online softmax. The tensor cores
// (mma) bound it, since each key in shared memory serves kRows tokens. The next tile of keys and
// values is copied while this one is computed. In shared memory they have the layout of the cache
// (kv_layout.cuh): two stages of [K, V], [keys / 8][head_dim / 64][8][64] each. Source: Dao,
// "FlashAttention-2", 2023.
namespace nanovllm::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kRows = 16 * kWarps;  // tokens of a thread block
/// Keys of a tile. Two stages of keys and values must fit in the 99 KB that every GPU has.
template <int kHeadDim>
constexpr int kTileKeys = kHeadDim == 256 ? 32 : 64;

// -- kernel

/// Finds the sequence of tile `index` of the batch, and the first of the tile's kRows tokens.
/// Sequences with one new token have no tiles. Returns false beyond the last tile. All lanes of a
/// warp call this together.
__device__ bool find_tile(const AttentionParams& p, int index, int& seq, int& first_row) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < p.num_seqs; base += 32) {
    const int s = base + lane;
    const int n = s < p.num_seqs ? p.cu_seqlens_q[s + 1] - p.cu_seqlens_q[s] : 0;
    const int tiles = n > 1 ? (n + kRows - 1) / kRows : 0;
    const int sum = warp_inclusive_scan(tiles);
    const unsigned holds = __ballot_sync(kAllLanes, index < sum);
    if (holds != 0) {
      const int at = __ffs(static_cast<int>(holds)) - 1;
      seq = base + at;
      first_row = (index - __shfl_sync(kAllLanes, sum - tiles, at)) * kRows;
      return true;
    }
    index -= __shfl_sync(kAllLanes, sum, 31);
  }
  return false;
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kThreads) prefill_kernel(const AttentionParams p) {
  constexpr int kKeys = kTileKeys<kHeadDim>, kTileBytes = kKeys * kHeadDim * 2;  // bytes of K or V
  extern __shared__ __align__(1024) unsigned char shared[];
  begin_kernel();
  int seq, first_row;
  if (!find_tile(p, static_cast<int>(blockIdx.x), seq, first_row)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane / 4, pair = lane % 4;
  const int head = blockIdx.y, kv_head = head / (p.num_heads / p.layout.num_kv_heads);
  const int first_token = p.cu_seqlens_q[seq];
  const int num_rows = p.cu_seqlens_q[seq + 1] - first_token, context = p.context_lens[seq];
  const int num_before = context - num_rows;
  const int last_row = min(first_row + kRows, num_rows) - 1;
  const int num_tiles = (num_before + last_row + 1 + kKeys - 1) / kKeys;
  const int32_t* table = p.block_tables + int64_t{p.seq_slots[seq]} * p.max_blocks;
  const uint32_t ring = shared_address(shared);

  const auto copy_tile = [&](int tile) {
    const uint32_t to = ring + tile % 2 * 2 * kTileBytes;
#pragma unroll
    for (int i = 0; i < kTileBytes / 16 / kThreads; ++i) {
      const int offset = (i * kThreads + static_cast<int>(threadIdx.x)) * 16;
      const int group = offset / (8 * kHeadDim * 2);  // which 8 keys of the tile
      const int first = tile * kKeys + group * 8, key = first + offset / 128 % 8;
      const bool exists = key < context;
      const int64_t from = exists ? p.layout.entry(table[first / p.layout.block_size], kv_head) +
                                        first % p.layout.block_size * (kHeadDim * 2) +
                                        offset % (8 * kHeadDim * 2)
                                  : 0;
      async_copy16_or_zero(to + offset, static_cast<const char*>(p.k) + from, exists);
      async_copy16_or_zero(to + kTileBytes + offset, static_cast<const char*>(p.v) + from, exists);
    }
    commit_async_copies();
  };
  copy_tile(0);

  uint32_t q[kHeadDim / 16][4];
  const int row0 = first_row + warp * 16 + quad;  // this lane's rows: row0 and row0 + 8
  {
    const int64_t width = int64_t{p.num_heads + 2 * p.layout.num_kv_heads} * kHeadDim;
    const T* from =
        static_cast<const T*>(p.qkv) + (first_token + row0) * width + head * kHeadDim + 2 * pair;
    const auto word = [&](int row, int d) {
      return row0 + row < num_rows ? *reinterpret_cast<const uint32_t*>(from + row * width + d)
                                   : 0u;
    };
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      q[i][0] = word(0, i * 16);
      q[i][1] = word(8, i * 16);
      q[i][2] = word(0, i * 16 + 8);
      q[i][3] = word(8, i * 16 + 8);
    }
  }

  const float scale = p.scale * kLog2e;
  const int matrix = lane / 8, matrix_row = lane % 8;
  const uint32_t k_lane = matrix / 2 * (8 * kHeadDim * 2) + matrix_row * 128;
  const uint32_t v_lane = matrix % 2 * (8 * kHeadDim * 2) + matrix_row * 128;
  const auto chunk_at = [&](int chunk) {
    return static_cast<uint32_t>(chunk / 8 * 1024 + ((chunk % 8) ^ matrix_row) * 16);
  };
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float acc[kHeadDim / 8][4] = {};
  for (int tile = 0; tile < num_tiles; ++tile) {
    if (tile + 1 < num_tiles) copy_tile(tile + 1);
    else commit_async_copies();
    wait_async_copies<1>();
    __syncthreads();
    const uint32_t k = ring + tile % 2 * 2 * kTileBytes, v = k + kTileBytes;
    float s[kKeys / 8][4] = {};
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kKeys / 16; ++j) {
        uint32_t b[4];
        ldmatrix_x4(b, k + j * (16 * kHeadDim * 2) + k_lane + chunk_at(2 * i + matrix % 2));
        mma_16x8x16<T>(s[2 * j], q[i], b[0], b[1]);
        mma_16x8x16<T>(s[2 * j + 1], q[i], b[2], b[3]);
      }
    }
    // A token sees the keys up to its own, so only the last tiles need a mask.
    const int first_seen = num_before + first_row + warp * 16 + 1 - tile * kKeys;
    if (first_seen < kKeys) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (n * 8 + 2 * pair + i % 2 >= first_seen + quad + i / 2 * 8) s[n][i] = -INFINITY;
    }
    uint32_t weights[kKeys / 16][4];
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m = -INFINITY;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) m = fmaxf(m, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
      m = fmaxf(quad_reduce(m, Max()) * scale, max[half]);
      shrink[half] = exp2f(max[half] - m);
      max[half] = m;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        const float a = exp2f(s[n][2 * half] * scale - m);
        const float b = exp2f(s[n][2 * half + 1] * scale - m);
        total += a + b;
        weights[n / 2][n % 2 * 2 + half] = pack<T>(a, b);
      }
      sum[half] = sum[half] * shrink[half] + total;
    }
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] *= shrink[i / 2];
#pragma unroll
    for (int j = 0; j < kKeys / 16; ++j) {
#pragma unroll
      for (int i = 0; i < kHeadDim / 16; ++i) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, v + j * (16 * kHeadDim * 2) + v_lane + chunk_at(2 * i + matrix / 2));
        mma_16x8x16<T>(acc[2 * i], weights[j], b[0], b[1]);
        mma_16x8x16<T>(acc[2 * i + 1], weights[j], b[2], b[3]);
      }
    }
    __syncthreads();  // all warps have read this stage before it is overwritten
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    sum[half] = quad_reduce(sum[half], Sum());
    const int row = row0 + half * 8;
    if (row >= num_rows) continue;
    T* out = static_cast<T*>(p.out) + (int64_t{first_token + row} * p.num_heads + head) * kHeadDim;
    const float scale_out = 1 / sum[half];
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n)
      *reinterpret_cast<uint32_t*>(out + n * 8 + 2 * pair) =
          pack<T>(acc[n][2 * half] * scale_out, acc[n][2 * half + 1] * scale_out);
  }
}

// -- launcher

template <class T, int kHeadDim>
void run(Launch where, const AttentionParams& params) {
  constexpr size_t kBytes = 2 * 2 * kTileKeys<kHeadDim> * kHeadDim * 2;
  constexpr auto kernel = prefill_kernel<T, kHeadDim>;
  allow_shared_memory<kernel>();
  const int tiles = params.num_tokens / kRows + params.num_seqs;
  launch(where, kernel, dim3(blocks_for(tiles), blocks_for(params.num_heads)), kThreads, kBytes,
         params);
}

}  // namespace

void prefill_attention(Launch where, const AttentionParams& params, DType dtype) {
  check_args(params.layout.tiled && !params.layout.is_e4m3(),
             "prefill_attention: needs a tiled cache of 16-bit elements");
  with_tiled_type(dtype, params.layout.head_dim, [&](auto type, auto head_dim) {
    run<decltype(type), head_dim()>(where, params);
  });
}

}  // namespace nanovllm::cuda
