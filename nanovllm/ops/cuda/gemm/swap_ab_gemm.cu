#include "nanovllm/ops/cuda/gemm/swap_ab_gemm.h"

#include <algorithm>
#include <optional>

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

// -- tile configuration

struct Config {
  int rows;    // of w in a thread block, a multiple of 32; with SwiGLU half of them are gates
  int split;   // thread blocks of a cluster, each with a part of k
  int stages;  // of the ring
};

/// The configuration for a GEMM, or none if other kernels are faster. The rule was found on an H200
/// in whole steps of Qwen3's shapes from 0.6B to 14B. These GEMMs are bound by how soon every
/// multiprocessor has enough loads of w in flight, and by how long thread blocks wait for each
/// other. Up to 32 tokens this takes four thirds to two thread blocks for each multiprocessor; a
/// thread block has as many rows as that allows. With more tokens the exchange of sums costs more,
/// so one thread block for each multiprocessor is enough, and GEMMs with a long k are left to
/// tile_gemm(), which reads x less often.
std::optional<Config> find_config(Launch where, const GemmArgs& args, bool has_rope) {
  const int total_rows = (args.epilogue == Epilogue::kSwiglu ? 2 : 1) * args.n;
  const int tokens = args.num_tokens <= 32 ? 32 : kSwapAbTokens;
  const int num_chunks = args.k / kChunk;
  const auto make = [&](int rows, int split) -> std::optional<Config> {
    const int blocks = total_rows / rows * split;
    if (total_rows % rows != 0 || args.k % kChunk != 0 || num_chunks % split != 0) return {};
    if (args.epilogue == Epilogue::kAdd && args.n / rows > kMaxNormParts) return {};
    if (blocks > 2 * where.num_sms) return {};
    // A multiprocessor has room for two thread blocks; for three if most multiprocessors have two
    // of this GEMM, so that thread blocks of the next one can start while these end.
    const int ring_bytes = (blocks > where.num_sms * 3 / 2 ? 72 : 100) << 10;
    return Config{rows, split,
                  std::min(num_chunks / split, ring_bytes / ((rows + tokens) * kChunkBytes))};
  };
  if (tokens == 32) {
    constexpr int kSplit = 4;
    const int least_rows = has_rope ? kHeadDim : args.epilogue == Epilogue::kSwiglu ? 64 : 32;
    int rows = 128;
    const auto is_enough = [&] { return total_rows / rows * kSplit >= where.num_sms * 4 / 3; };
    while (rows > least_rows && !is_enough()) rows /= 2;
    if (has_rope && !is_enough()) return {};
    // 32 rows leave half of wgmma's M empty. If k is long, twice the rows and twice the split give
    // as many thread blocks.
    constexpr int kLeastChunks = 6;  // of k in a thread block
    const bool is_long = num_chunks % (2 * kSplit) == 0 && num_chunks >= 2 * kSplit * kLeastChunks;
    return rows == 32 && is_long ? make(64, 2 * kSplit) : make(rows, kSplit);
  }
  const int rows = has_rope ? kHeadDim : 64, most_chunks = has_rope ? 16 : 8;
  for (const int split : {1, 2, 4, 8})
    if (total_rows / rows * split >= where.num_sms * 15 / 16)
      return num_chunks <= most_chunks * split ? make(rows, split) : std::nullopt;
  return {};
}

// -- kernel

template <int kTokens, bool kRope>
__global__ void __launch_bounds__(kThreads, 3) swap_ab_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const Block<kTokens> block{.p = p, .shared = shared_address(memory)};
  const int thread = threadIdx.x;
  const int producer = thread - p.consumers;  // negative in consumer warps; thread 0 copies
  if (producer == 0) block.begin_copies();
  else if constexpr (kRope) block.prefetch_angles();
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
  if constexpr (kRope) block.finish_head();
  else block.finish();
  __syncwarp();
  cluster_sync_relaxed();  // no copy reads this thread block's sums any more
#endif
}

// -- launcher

template <int kTokens, bool kRope>
void run(Launch where, const GemmArgs& args, const DeferredNorm& norm, const Config& config,
         const RopeParams& rope) {
  const int parts = args.epilogue == Epilogue::kSwiglu ? 2 : 1;  // of w: gates and ups
  const int num_chunks = args.k / kChunk / config.split;
  const int consumers = (config.rows + 63) / 64 * 128;
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
      .early = num_chunks > config.stages,
      .rope = rope};
  const int bytes = Layout<kTokens>(config.rows, config.stages).bytes();
  constexpr auto kernel = swap_ab_kernel<kTokens, kRope>;
  allow_shared_memory<kernel>();
  launch(ClusterLaunch{where, config.split}, kernel,
         dim3(static_cast<unsigned>(parts * args.n / config.rows * config.split)), kThreads,
         static_cast<size_t>(bytes), params);
}

}  // namespace

bool prefers_swap_ab_gemm(Launch where, const GemmArgs& args, DType dtype, const RopeParams* rope) {
  const bool is_head = rope == nullptr || (args.epilogue == Epilogue::kStore &&
                                           rope->layout.tiled && rope->layout.head_dim == kHeadDim);
  // Float16 could overflow before a deferred norm divides.
  return is_head && dtype == DType::kBF16 && args.num_tokens > kFewTokens &&
         args.num_tokens <= kSwapAbTokens && find_config(where, args, rope != nullptr).has_value();
}

void swap_ab_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm,
                  const RopeParams* rope) {
  const std::optional<Config> config = find_config(where, args, rope != nullptr);
  check_args(config.has_value(), "swap_ab_gemm: a shape that it does not support");
  const auto with_tokens = [&]<int kTokens>() {
    if (rope != nullptr) run<kTokens, true>(where, args, norm, *config, *rope);
    else run<kTokens, false>(where, args, norm, *config, RopeParams({}, {}, {}));
  };
  if (args.num_tokens <= 32) with_tokens.template operator()<32>();
  else with_tokens.template operator()<kSwapAbTokens>();
}

int num_norm_parts(Launch where, const GemmArgs& args) {
  return args.n / find_config(where, args, false)->rows;
}

}  // namespace nanovllm::cuda
