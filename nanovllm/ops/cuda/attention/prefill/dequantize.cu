#include "nanovllm/ops/cuda/attention/attention.h"
#include "nanovllm/ops/cuda/attention/dispatch.cuh"

//   copy[key, d] = round(e4m3[key, d] * scale[key])
// for the keys and values of the sequences with several new tokens. A thread block converts one KV
// head in one block of the cache. Memory bandwidth bounds it: a byte is read and two are written
// with hardly any arithmetic. Each key is converted once for all query heads and tokens that read
// it, which takes a few percent of the attention's time. So prefill attention needs no variant that
// reads e4m3.
namespace nanovllm::cuda {
namespace {

// -- kernel

constexpr int kThreads = 256;

/// Grid: (blocks of a sequence, KV heads, sequences). A thread converts 16 bytes at a time.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const AttentionParams p, const KvLayout layout, char* keys,
                      int32_t* block_tables) {
  begin_kernel();
  const int index = blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
  const int block_size = p.layout.block_size;
  const int num_keys = min(block_size, p.context_lens[seq] - index * block_size);
  if (num_keys <= 0 || p.cu_seqlens_q[seq + 1] - p.cu_seqlens_q[seq] <= 1) return;
  const int64_t at = int64_t{p.seq_slots[seq]} * p.max_blocks + index;
  const int block = seq * gridDim.x + index;
  if (head == 0 && threadIdx.x == 0) block_tables[at] = block;
  const int64_t from = p.layout.entry(p.block_tables[at], head), to = layout.entry(block, head);
  const int chunks = layout.head_dim / 16;
  for (int i = threadIdx.x; i < 2 * num_keys * chunks; i += kThreads) {
    const int key = i / chunks % num_keys, d = i % chunks * 16;
    const bool is_v = i >= num_keys * chunks;
    const char* const entry = static_cast<const char*>(is_v ? p.v : p.k) + from;
    const uint4 words = *reinterpret_cast<const uint4*>(entry + p.layout.at(key, d));
    const float scale = *reinterpret_cast<const float*>(entry + p.layout.scale_at(key));
    const uint32_t in[4] = {words.x, words.y, words.z, words.w};
    uint32_t out[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t halfs[2];
      e4m3_to_halfs(in[j], halfs[0], halfs[1]);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float2 pair = __half22float2(bits_as<__half2>(halfs[k]));
        out[2 * j + k] = pack<T>(pair.x * scale, pair.y * scale);
      }
    }
    char* const copy = keys + (is_v ? layout.layer_stride : 0) + to;
    *reinterpret_cast<uint4*>(copy + layout.at(key, d)) = {out[0], out[1], out[2], out[3]};
    *reinterpret_cast<uint4*>(copy + layout.at(key, d + 8)) = {out[4], out[5], out[6], out[7]};
  }
}

}  // namespace

// -- launcher

int64_t dequantized_block_bytes(const KvCache& kv) {
  return 2 * KvLayout(kv).of_16bit(1).layer_stride;
}

AttentionParams dequantize(Launch where, const AttentionParams& params, DType dtype,
                           int blocks_per_seq, const DequantizedKeys& to) {
  check_args(params.layout.tiled && params.layout.is_e4m3(),
             "dequantize: needs a tiled cache of e4m3");
  AttentionParams copy = params;
  copy.layout = params.layout.of_16bit(int64_t{params.num_seqs} * blocks_per_seq);
  copy.k = to.memory;
  copy.v = static_cast<char*>(to.memory) + copy.layout.layer_stride;
  copy.block_tables = to.block_tables;
  const dim3 grid(blocks_for(blocks_per_seq), blocks_for(params.layout.num_kv_heads),
                  blocks_for(params.num_seqs));
  with_16bit_type(dtype, [&](auto type) {
    launch(where, dequantize_kernel<decltype(type)>, grid, kThreads, 0, params, copy.layout,
           static_cast<char*>(to.memory), to.block_tables);
  });
  return copy;
}

}  // namespace nanovllm::cuda
