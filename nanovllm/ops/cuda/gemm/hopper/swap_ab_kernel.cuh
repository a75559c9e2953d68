#pragma once

#include "nanovllm/ops/cuda/attention/dispatch.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/raw_operands.cuh"

// The kernel of swap_ab_gemm.cu, which says what it computes, and its launch. Each format of
// quantized weights is compiled in a file of its own (quantized/hopper/).
namespace nanovllm::cuda {

/// A cluster of p.split thread blocks computes p.rows rows of w for all tokens. In a thread block
/// one lane copies, the other warps multiply, and all warps run the epilogue. kHeadDim is the
/// dimension of the heads of q, k and v whose rotation and store are part of the epilogue, or 0 if
/// these are not. C is the type of the cache's elements.
template <class Operands, int kTokens, int kHeadDim, class C>
__global__ void __launch_bounds__(Operands::kMostThreads, Operands::kResident)
    swap_ab_kernel(const __grid_constant__ typename Operands::Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using namespace swap_ab;
  extern __shared__ __align__(1024) unsigned char memory[];
  uint32_t shared = shared_address(memory);
  asm volatile("" : "+r"(shared));  // keeps the compiler from computing it again and again
  const Block<kTokens, Operands> block{.p = p, .shared = shared};
  const int thread = threadIdx.x;
  const int producer = thread - p.consumers;  // negative in consumer warps; thread 0 copies
  if (producer == 0) block.init_barriers();
  else if constexpr (kHeadDim > 0) block.template prefetch_angles<kHeadDim>();
  else block.prefetch_norm();
  __syncwarp();
  cluster_arrive_relaxed();
  if (producer == 0) block.begin_copies();
  __syncwarp();
  cluster_wait();  // all thread blocks have initialised their barriers
  if (p.early) launch_dependents();
  wait_for_previous_kernel();
  if (!p.early) launch_dependents();

  if (producer < 0) block.multiply(thread);
  else if (producer == 0) block.copy();
  __syncwarp();
  fence_async_proxy();
  __syncthreads();
  if (thread < p.split) block.send_sums(thread);
  __syncwarp();
  if constexpr (kHeadDim > 0) block.template finish_heads<kHeadDim, C>();
  else block.finish();
  __syncwarp();
  cluster_wait();  // no copy reads this thread block's sums any more
#endif
}

// -- launcher

template <class Operands, int kTokens, int kHeadDim, class C = Bf16>
void run_swap_ab_kernel(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                        const DeferredNorm& norm, const RopeParams& rope) {
  const int parts = args.epilogue == Epilogue::kSwiglu ? 2 : 1;  // with SwiGLU, gates and ups
  const int num_chunks = (args.k + Operands::kChunk - 1) / Operands::kChunk;
  const swap_ab::Params params = {
      .w = {},
      .x = {},
      .args = args,
      .norm = norm,
      .rows = config.rows,
      .split = config.split,
      .stages = config.stages,
      .num_chunks = num_chunks,
      .consumers = config.consumers,
      // If all weights fit the ring, the next kernel's loads would delay this kernel's x.
      .early = num_chunks > config.stages * config.split,
      .rope = rope};
  const int bytes = swap_ab::Layout<kTokens, Operands>(config.rows, config.stages).bytes();
  constexpr auto kernel = swap_ab_kernel<Operands, kTokens, kHeadDim, C>;
  allow_shared_memory<kernel>();
  launch(ClusterLaunch{where, config.split}, kernel,
         dim3(static_cast<unsigned>(parts * args.n / config.rows * config.split)),
         std::max(swap_ab::kThreads, config.consumers + 32), static_cast<size_t>(bytes),
         Operands::with_operands(params, kTokens));
}

template <class Operands>
void run_swap_ab(Launch where, const GemmArgs& args, const SwapAbConfig& config,
                 const DeferredNorm& norm) {
  const RopeParams* const rope = args.rope;
  const auto with_tokens = [&]<int kTokens>() {
    if (rope == nullptr)
      return run_swap_ab_kernel<Operands, kTokens, 0>(where, args, config, norm,
                                                      RopeParams({}, {}, {}));
    with_cache_type<Bf16>(rope->layout, [&](auto element) {
      using C = decltype(element);
      if (rope->layout.head_dim == 64)
        run_swap_ab_kernel<Operands, kTokens, 64, C>(where, args, config, norm, *rope);
      else run_swap_ab_kernel<Operands, kTokens, 128, C>(where, args, config, norm, *rope);
    });
  };
  if (args.num_tokens <= 32) with_tokens.template operator()<32>();
  else with_tokens.template operator()<kSwapAbTokens>();
}

}  // namespace nanovllm::cuda
