#include "nanovllm/ops/cuda/gemm/swap_ab_gemm.h"

#include <algorithm>
#include <optional>

#include "nanovllm/ops/cuda/attention/dispatch.cuh"
#include "nanovllm/ops/cuda/gemm/swap_ab_block.cuh"

// GEMMs of 17 to 64 tokens on Hopper with swapped operands (swap-AB): the rows of w are wgmma's M,
// 64 for each warpgroup, and the tokens are its N, 32 or 64. With the tokens as M, half of a tile
// or more would be padding.
//
// A thread block computes some rows of w for one part of k (split-K), and the thread blocks of a
// cluster compute the other ranges of k for the same rows. Each finishes some of the tokens: the
// others send it their sums of these tokens, which it adds in the order of k. TMA copies w and x
// into one ring of stages, and as much of w as the ring holds is prefetched before the previous
// kernel has ended. The epilogue adds bias or residual, computes SwiGLU, and begins or finishes a
// DeferredNorm. If the rows of a thread block are a head of q, k or v, the epilogue also does the
// head's norm, the rotation and the store into the cache. Read swap_ab_block.cuh for the thread
// block's code.
namespace nanovllm::cuda {
using namespace swap_ab;
namespace {

// -- configuration

/// Of a thread block if one, two or three of them run on a multiprocessor.
constexpr int kRingBytes[] = {200 << 10, 100 << 10, 72 << 10};

struct Config {
  int rows;    // of w in a thread block; with SwiGLU half of them are gates
  int split;   // thread blocks of a cluster, each with a part of k
  int stages;  // of the ring
};

/// The configuration for a GEMM, or none if it has too many rows. `head_dim`: of the heads that the
/// epilogue rotates, or 0. The rules were found on an H200 with chains of the GEMMs of 15 models
/// from 0.36B to 32B, at 24, 40 and 64 tokens; docs/kernels.md has the reasons.
std::optional<Config> find_config(Launch where, const GemmArgs& args, int head_dim) {
  const int total_rows = (args.epilogue == Epilogue::kSwiglu ? 2 : 1) * args.n;
  const int tokens = args.num_tokens <= 32 ? 32 : kSwapAbTokens;
  const int rows = std::max(64, head_dim), num_chunks = args.k / kChunk;
  if (total_rows % rows != 0 || args.k % kChunk != 0) return {};
  if (args.epilogue == Epilogue::kAdd && args.n / rows > kMaxNormParts) return {};
  // All thread blocks run at the same time. Clusters of four or more do not fill every group of
  // multiprocessors.
  constexpr int kMostResident = std::size(kRingBytes);
  const auto residents = [&](int split) {
    const int usable = split <= 2 ? where.num_sms : where.num_sms * 6 / 7;
    return (total_rows / rows * split + usable - 1) / usable;
  };
  if (residents(1) > kMostResident) return {};
  // The more a GEMM is split, the more of w is loaded at once, and the more sums are exchanged.
  // Rows times chunks of a thread block, for each part of k.
  const int least_work = tokens == 32 ? 32 : 40;
  constexpr int kLongPart = 24;  // chunks for which a large ring gains more than another split
  int split = 1;
  for (int more = 2; more <= kMaxSplit; more *= 2) {
    const int chunks = (num_chunks + more - 1) / more;
    const bool is_balanced =
        residents(split) == 1 && total_rows / rows * split >= where.num_sms * 15 / 16;
    if (is_balanced && num_chunks >= kLongPart * split) break;
    if (num_chunks >= more && chunks * rows >= least_work * more &&
        residents(more) <= kMostResident)
      split = more;
  }
  const int most_stages = kRingBytes[residents(split) - 1] / ((rows + tokens) * kChunkBytes);
  return Config{rows, split, std::min((num_chunks + split - 1) / split, most_stages)};
}

// -- kernel

/// kHeadDim: of the heads of q, k and v whose rotation and store are part of the epilogue; or 0. C:
/// the type of the cache's elements.
template <int kTokens, int kHeadDim, class C>
__global__ void __launch_bounds__(kThreads, 3) swap_ab_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const Block<kTokens> block{.p = p, .shared = shared_address(memory)};
  const int thread = threadIdx.x;
  const int producer = thread - p.consumers;  // negative in consumer warps; thread 0 copies
  if (producer == 0) block.begin_copies();
  else if constexpr (kHeadDim > 0) block.template prefetch_angles<kHeadDim>();
  else block.prefetch_norm();
  __syncwarp();
  cluster_sync_relaxed();  // all thread blocks have initialised their barriers
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
  cluster_sync_relaxed();  // no copy reads this thread block's sums any more
#endif
}

// -- launcher

template <int kTokens, int kHeadDim, class C = Bf16>
void run(Launch where, const GemmArgs& args, const DeferredNorm& norm, const Config& config,
         const RopeParams& rope) {
  const int parts = args.epilogue == Epilogue::kSwiglu ? 2 : 1;  // of w: gates and ups
  const int num_chunks = args.k / kChunk;
  const int consumers = config.rows / 64 * 128;
  const Params params = {
      .w = tensor_map(args.w, parts * args.n, args.k, config.rows / 2),
      .x = tensor_map(args.x, args.num_tokens, args.k, kTokens),
      .args = args,
      .norm = norm,
      .rows = config.rows,
      .split = config.split,
      .stages = config.stages,
      .num_chunks = num_chunks,
      .consumers = consumers,
      // As in small_gemm.cu: only a kernel whose weights do not all fit the ring.
      .early = num_chunks > config.stages * config.split,
      .rope = rope};
  const int bytes = Layout<kTokens>(config.rows, config.stages).bytes();
  constexpr auto kernel = swap_ab_kernel<kTokens, kHeadDim, C>;
  allow_shared_memory<kernel>();
  launch(ClusterLaunch{where, config.split}, kernel,
         dim3(static_cast<unsigned>(parts * args.n / config.rows * config.split)), kThreads,
         static_cast<size_t>(bytes), params);
}

int rope_dim(const RopeParams* rope) { return rope != nullptr ? rope->layout.head_dim : 0; }

}  // namespace

bool prefers_swap_ab_gemm(Launch where, const GemmArgs& args, DType dtype, const RopeParams* rope) {
  // Float16 could overflow before a deferred norm divides.
  if (dtype != DType::kBF16 || args.num_tokens <= kFewTokens || args.num_tokens > kSwapAbTokens)
    return false;
  if (rope != nullptr && !(rope->layout.tiled && rope->layout.head_dim <= 128)) return false;
  const std::optional<Config> config = find_config(where, args, rope_dim(rope));
  // With SwiGLU tile_gemm() is faster, because it reads x less often; but not if a norm would have
  // to be computed before it and all weights fit into the rings before x is known.
  const int64_t ring_bytes = int64_t{kRingBytes[0]} * where.num_sms;
  const bool is_small = args.norm != nullptr && int64_t{4} * args.n * args.k <= ring_bytes;
  return config.has_value() && (args.epilogue != Epilogue::kSwiglu || is_small);
}

void swap_ab_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm,
                  const RopeParams* rope) {
  const int head_dim = rope_dim(rope);
  const std::optional<Config> config = find_config(where, args, head_dim);
  check_args(config.has_value(), "swap_ab_gemm: a shape that it does not support");
  const auto with_tokens = [&]<int kTokens>() {
    if (head_dim == 0) return run<kTokens, 0>(where, args, norm, *config, RopeParams({}, {}, {}));
    with_cache_type<Bf16>(rope->layout, [&](auto element) {
      using C = decltype(element);
      if (head_dim == 64) run<kTokens, 64, C>(where, args, norm, *config, *rope);
      else run<kTokens, 128, C>(where, args, norm, *config, *rope);
    });
  };
  if (args.num_tokens <= 32) with_tokens.template operator()<32>();
  else with_tokens.template operator()<kSwapAbTokens>();
}

int num_norm_parts(Launch where, const GemmArgs& args) {
  return args.n / find_config(where, args, 0)->rows;
}

}  // namespace nanovllm::cuda
