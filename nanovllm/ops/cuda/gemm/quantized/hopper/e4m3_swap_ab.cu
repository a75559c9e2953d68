#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_kernel.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/hopper_gemms.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"

// swap_ab_gemm() for weights and activations in E4M3. The tensor cores multiply the bytes as they
// are and add the products of one chunk of k, which share their scales; a consumer scales these
// sums and adds them in float32.
namespace nanovllm::cuda {
namespace swap_ab {

struct E4M3Operands : RawOperands<E4M3Format<Bf16>> {
  static constexpr int kMostThreads = kThreads, kResident = 2;
  static constexpr int kScaleBytes = 1024;  // room in a stage for a scale of x for each token
  static constexpr int kReaders = 32;  // compute-sanitizer's racecheck does not follow __syncwarp()
  static __host__ __device__ int x_bytes(int tokens) { return tokens * kChunk + kScaleBytes; }

  static Params with_operands(swap_ab::Params p, int tokens) {
    const QuantizedActivations& x = *p.args.quantized_x;
    p.x = byte_tensor_map(x.values, p.args.num_tokens, p.args.k, x.row_bytes, tokens);
    return {p, Stage::params(*p.args.quantized, p.rows / kBoxes), x.scales,
            x.has_chunks ? x.scale_stride : 0, std::min(tokens, x.scale_stride) * 4};
  }

  template <int kTokens>
  __device__ uint32_t copied_x_bytes() const {
    return static_cast<uint32_t>(kTokens * kChunk + p.x_scale_bytes);
  }
  template <int kTokens>
  __device__ void copy_x(uint32_t stage, int chunk, uint32_t barrier) const {
    box_copy(stage, p.x, chunk * kChunk, 0, barrier);
    bulk_copy(stage + kTokens * kChunk, p.x_scales + chunk * p.x_scale_stride,
              static_cast<uint32_t>(p.x_scale_bytes), barrier);
  }

  /// Does the work of Block::multiply().
  template <int kTokens>
  __device__ __forceinline__ void multiply(const Block<kTokens, E4M3Operands>& block,
                                           int thread) const {
    float sums[kTokens / 2] = {}, part[kTokens / 2];
    const Share share(block, thread);
    const int first_row = share.first_row + thread % 128 / 32 * 16;
    const Lane lane = lane_of(block, first_row + thread % 32 / 4);
    share.for_chunks(block, [&](int chunk, int stage, uint32_t parity) {
      const uint32_t stage_w = block.shared + block.layout.w(stage);
      const uint32_t x = block.shared + block.layout.x(stage);
      barrier_wait(block.barrier(kWFull, stage), parity);
      barrier_wait(block.barrier(kXFull, stage), parity);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kChunk / 32; ++i)
        Wgmma<__nv_fp8_e4m3, kTokens>::ss(
            part, tile_descriptor(stage_w + share.first_row * Stage::kRowBytes + i * 32, 1024, 0),
            tile_descriptor(x + i * 32, 1024, 0), i > 0);
      wgmma_commit();
      float scale[2];  // w's, for both rows of the lane
      const uint32_t scales =
          stage_w + Stage::chunk_offset(p.raw.weight, block.first_chunk + chunk);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        scale[i] = __uint_as_float(load_shared_word(scales + lane.scales[i]));
      const uint32_t x_scales = x + kTokens * kChunk + thread % 4 * 8;
      wgmma_wait<0>();
      pin(part);
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        const uint2 words = load_shared8(x_scales + j * 32);
        const float of[2] = {__uint_as_float(words.x), __uint_as_float(words.y)};  // the two tokens
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[4 * j + i] += part[4 * j + i] * (scale[i / 2] * of[i % 2]);
      }
      if (chunk + p.stages < block.num_chunks) barrier_arrive(block.barrier(kEmpty, stage));
    });
    block.store_sums(sums, thread);
  }
};

}  // namespace swap_ab

void e4m3_swap_ab_gemm(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                       const DeferredNorm& norm) {
  run_swap_ab<swap_ab::E4M3Operands>(where, args, config, norm);
}

int e4m3_stage_bytes(int rows, int tokens) {
  return swap_ab::E4M3Operands::bytes(rows) + swap_ab::E4M3Operands::x_bytes(tokens);
}

}  // namespace nanovllm::cuda
