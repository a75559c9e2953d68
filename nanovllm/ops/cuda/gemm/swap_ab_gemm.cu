#include "nanovllm/ops/cuda/gemm/swap_ab_gemm.h"

#include <algorithm>
#include <optional>

#include "nanovllm/ops/cuda/gemm/swap_ab_block.cuh"

// GEMMs of 17 to 64 tokens on Hopper with A and B swapped: the rows of w are wgmma's M, 64 for each
// warpgroup, and the tokens its N, so that no half of a tile is padding. A thread block takes some
// rows and a part of k (split-K); the thread blocks of a cluster hold the other parts, and send
// each other the sums of the tokens that are theirs to finish, which are added in the order of k. w
// and x come by the copy engine through one ring; as much of w as the ring holds is prefetched
// before the previous kernel has ended. The epilogue adds bias or residual, computes SwiGLU, and
// does its part of a DeferredNorm. Where a thread block's rows are a head of q, k or v, the
// epilogue does the head's norm, the rotation and the store into the cache as well.
namespace nanovllm::cuda {
using namespace swap_ab;
namespace {

// -- tile configuration

struct Config {
  int rows;    // of w in a thread block, a multiple of 32; with SwiGLU half of them are gates
  int split;   // thread blocks of a cluster, which share out k
  int stages;  // of the ring
};

/// The configuration for a GEMM, or none where other kernels win. The rule was found on an H200 in
/// whole steps of Qwen3's shapes from 0.6B to 14B. What bounds these GEMMs is how soon every
/// multiprocessor has enough bytes of w on their way, and how long its thread blocks wait for each
/// other: up to 32 tokens it takes four thirds to two thread blocks for each multiprocessor, of as
/// many rows as leave that many. With more tokens the exchange of the sums costs more, so one for
/// each is enough, and weights with a long k are left to tiles, which read x less often.
std::optional<Config> find_config(Launch where, const GemmArgs& args, bool is_roped) {
  const int total_rows = (args.epilogue == Epilogue::kSwiglu ? 2 : 1) * args.n;
  const int tokens = args.num_tokens <= 32 ? 32 : kSwapAbTokens;
  const int num_chunks = args.k / kChunk;
  const auto make = [&](int rows, int split) -> std::optional<Config> {
    const int blocks = total_rows / rows * split;
    if (total_rows % rows != 0 || args.k % kChunk != 0 || num_chunks % split != 0) return {};
    if (args.epilogue == Epilogue::kAdd && args.n / rows > kMaxNormParts) return {};
    if (blocks > 2 * where.num_sms) return {};
    // Two thread blocks fit a multiprocessor; three, where most multiprocessors have two of this
    // GEMM, so that thread blocks of the next one find room while these end.
    const int ring_bytes = (blocks > where.num_sms * 3 / 2 ? 72 : 100) << 10;
    return Config{rows, split,
                  std::min(num_chunks / split, ring_bytes / ((rows + tokens) * kChunkBytes))};
  };
  if (tokens == 32) {
    constexpr int kSplit = 4;
    const int least_rows = is_roped ? kHeadDim : args.epilogue == Epilogue::kSwiglu ? 64 : 32;
    int rows = 128;
    const auto is_enough = [&] { return total_rows / rows * kSplit >= where.num_sms * 4 / 3; };
    while (rows > least_rows && !is_enough()) rows /= 2;
    if (is_roped && !is_enough()) return {};
    // 32 rows leave half of wgmma's M empty. Where k is long, halving the parts of k gives as many
    // thread blocks.
    constexpr int kLeastChunks = 6;  // of a part
    const bool is_long = num_chunks % (2 * kSplit) == 0 && num_chunks >= 2 * kSplit * kLeastChunks;
    return rows == 32 && is_long ? make(64, 2 * kSplit) : make(rows, kSplit);
  }
  const int rows = is_roped ? kHeadDim : 64, most_chunks = is_roped ? 16 : 8;
  for (const int split : {1, 2, 4, 8})
    if (total_rows / rows * split >= where.num_sms * 15 / 16)
      return num_chunks <= most_chunks * split ? make(rows, split) : std::nullopt;
  return {};
}

// -- kernel

template <int kTokens, bool kRoped>
__global__ void __launch_bounds__(kThreads, 3) swap_ab_kernel(const __grid_constant__ Params p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  const Block<kTokens> block{.p = p, .shared = shared_address(memory)};
  const int thread = threadIdx.x, copier = thread - p.multiplying;
  if (copier == 0) block.begin_copies();
  else if constexpr (kRoped) block.prefetch_angles();
  else block.prefetch_norm();
  __syncwarp();
  cluster_sync_relaxed();  // all thread blocks have initialised their barriers
  if (p.early) launch_dependents();
  wait_for_previous_kernel();
  if (!p.early) launch_dependents();

  if (copier < 0) block.multiply(thread);
  else if (copier == 0) block.copy();
  __syncwarp();
  fence_async_proxy();
  __syncthreads();
  if (thread < p.split) block.send_sums(thread);
  __syncwarp();
  if constexpr (kRoped) block.finish_head();
  else block.finish();
  __syncwarp();
  cluster_sync_relaxed();  // no copy reads this thread block's sums any more
#endif
}

// -- launcher

template <int kTokens, bool kRoped>
void run(Launch where, const GemmArgs& args, const DeferredNorm& norm, const Config& config,
         const RopeParams& rope) {
  const int parts = args.epilogue == Epilogue::kSwiglu ? 2 : 1;  // of w: gates and ups
  const int num_chunks = args.k / kChunk / config.split;
  const int multiplying = (config.rows + 63) / 64 * 128;
  const Params params = {
      .w = tensor_map(args.w, parts * args.n, args.k, config.rows / 2),
      .x = tensor_map(args.x, args.num_tokens, args.k, kTokens),
      .args = args,
      .norm = norm,
      .rows = config.rows,
      .split = config.split,
      .stages = config.stages,
      .num_chunks = num_chunks,
      .multiplying = multiplying,
      // As in small_gemm.cu: only a kernel that goes on streaming lets the next one start early.
      .early = num_chunks > config.stages,
      .rope = rope};
  const int bytes = Layout<kTokens>(config.rows, config.stages).bytes();
  constexpr auto kernel = swap_ab_kernel<kTokens, kRoped>;
  allow_shared_memory<kernel>();
  launch(ClusterLaunch{where, config.split}, kernel,
         dim3(static_cast<unsigned>(parts * args.n / config.rows * config.split)), kThreads,
         static_cast<size_t>(bytes), params);
}

template <bool kRoped>
void start(Launch where, const GemmArgs& args, const DeferredNorm& norm, const RopeParams& rope) {
  const std::optional<Config> config = find_config(where, args, kRoped);
  check_args(config.has_value(), "swap_ab_gemm: a shape that it does not serve");
  if (args.num_tokens <= 32) run<32, kRoped>(where, args, norm, *config, rope);
  else run<kSwapAbTokens, kRoped>(where, args, norm, *config, rope);
}

bool is_served(Launch where, const GemmArgs& args, DType dtype, bool is_roped) {
  // Float16 could overflow before a deferred norm divides.
  return dtype == DType::kBF16 && args.num_tokens > kFewTokens &&
         args.num_tokens <= kSwapAbTokens && find_config(where, args, is_roped).has_value();
}

}  // namespace

bool is_swap_ab_gemm(Launch where, const GemmArgs& args, DType dtype) {
  return is_served(where, args, dtype, false);
}

void swap_ab_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm) {
  start<false>(where, args, norm, RopeParams({}, {}, {}));
}

int num_norm_parts(Launch where, const GemmArgs& args) {
  return args.n / find_config(where, args, false)->rows;
}

bool is_roped_gemm(Launch where, const GemmArgs& args, DType dtype, const RopeParams& rope) {
  return args.epilogue == Epilogue::kStore && rope.layout.tiled &&
         rope.layout.head_dim == kHeadDim && is_served(where, args, dtype, true);
}

void roped_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm,
                const RopeParams& rope) {
  start<true>(where, args, norm, rope);
}

}  // namespace nanovllm::cuda
