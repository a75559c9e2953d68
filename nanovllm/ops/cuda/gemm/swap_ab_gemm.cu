#include "nanovllm/ops/cuda/gemm/swap_ab_gemm.h"

#include <algorithm>

#include "nanovllm/ops/cuda/gemm/swap_ab_block.cuh"

// Products of 17 to 64 tokens on Hopper, turned round for the tensor cores: w's rows are M, 64 for
// each warpgroup, and the tokens N. A block takes some rows and a part of k; the blocks of a
// cluster hold the other parts, and send each other the sums of the tokens that are theirs to
// finish, which are added in the order of k. w and x come by the copy engine through one ring, w as
// far as the ring goes before the kernel ahead has ended. Of a norm between two products the first
// one's blocks do what they can, each for its columns: x by the norm's weights, and a part of the
// tokens' sums of squares; the factor that these give is applied to the second product. Where a
// block's rows are a head of q, k or v, the head's norm, the rotation and the store into the cache
// come with the last addition.
namespace nanovllm::cuda {
using namespace swap_ab;
namespace {

// -- shapes

/// How a product is cut.
struct Plan {
  Epilogue epilogue;
  int n, k, max_tokens;
  int rows;    // of w, in a block: a multiple of 32, for a SwiGLU half of them gates
  int split;   // blocks of a cluster that share out k
  int stages;  // of the ring
};

/// What made whole steps faster on an H200: the shapes of Qwen3 0.6B, and of 8B up to 32 tokens,
/// its q, k and v up to 64.
constexpr Plan kPlans[] = {
    {Epilogue::kStore, 4096, 1024, 32, 64, 4, 4},   {Epilogue::kStore, 4096, 1024, 64, 128, 4, 4},
    {Epilogue::kAdd, 1024, 2048, 32, 32, 4, 8},     {Epilogue::kAdd, 1024, 2048, 64, 64, 8, 4},
    {Epilogue::kSwiglu, 3072, 1024, 32, 128, 4, 3}, {Epilogue::kSwiglu, 3072, 1024, 64, 64, 2, 6},
    {Epilogue::kAdd, 1024, 3072, 64, 64, 8, 6},     {Epilogue::kStore, 6144, 4096, 32, 128, 4, 5},
    {Epilogue::kStore, 6144, 4096, 64, 128, 4, 4},  {Epilogue::kAdd, 4096, 4096, 32, 64, 4, 6},
    {Epilogue::kAdd, 4096, 12288, 32, 64, 4, 6},
};

static_assert(std::ranges::all_of(kPlans, [](const Plan& plan) {
  return plan.epilogue != Epilogue::kAdd || plan.n / plan.rows <= kMaxNormParts;
}));

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
  cluster_sync_relaxed();  // all barriers are there
  if (p.early) launch_next();
  wait_before();
  if (!p.early) launch_next();

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
  cluster_sync_relaxed();  // nobody reads this block's sums any more
#endif
}

// -- launcher

template <int kTokens, bool kRoped>
void run(Launch where, const GemmArgs& args, const NormAhead& ahead, const Plan& plan,
         const RopeParams& rope) {
  const int parts = args.epilogue == Epilogue::kSwiglu ? 2 : 1;  // of w: gates and ups
  const int num_chunks = args.k / kChunk / plan.split;
  const int multiplying = (plan.rows + 63) / 64 * 128;
  const Params params = {
      .w = tensor_map(args.w, parts * args.n, args.k, plan.rows / 2),
      .x = tensor_map(args.x, args.num_tokens, args.k, kTokens),
      .args = args,
      .ahead = ahead,
      .rows = plan.rows,
      .split = plan.split,
      .stages = plan.stages,
      .num_chunks = num_chunks,
      .multiplying = multiplying,
      // As in small_gemm.cu: only one with a long stream lets the next one's copies queue behind.
      .early = num_chunks > plan.stages,
      .rope = rope};
  const int bytes = Layout<kTokens>(plan.rows, plan.stages).bytes();
  constexpr auto kernel = swap_ab_kernel<kTokens, kRoped>;
  allow_shared_memory<kernel>();
  launch(ClusterLaunch{where, plan.split}, kernel,
         dim3(static_cast<unsigned>(parts * args.n / plan.rows * plan.split)), kThreads,
         static_cast<size_t>(bytes), params);
}

const Plan* find_plan(const GemmArgs& args) {
  for (const Plan& plan : kPlans)
    if (plan.epilogue == args.epilogue && plan.n == args.n && plan.k == args.k &&
        args.num_tokens <= plan.max_tokens)
      return &plan;
  return nullptr;
}

template <bool kRoped>
void start(Launch where, const GemmArgs& args, const NormAhead& ahead, const RopeParams& rope) {
  const Plan* const plan = find_plan(args);
  check_args(plan != nullptr, "swap_ab_gemm: a shape that it does not serve");
  if (args.num_tokens <= 32) run<32, kRoped>(where, args, ahead, *plan, rope);
  else run<kSwapAbTokens, kRoped>(where, args, ahead, *plan, rope);
}

}  // namespace

bool is_swap_ab_gemm(const GemmArgs& args, DType dtype) {
  // Float16 could overflow where the scale comes last.
  return dtype == DType::kBF16 && args.num_tokens > kFewTokens && find_plan(args) != nullptr;
}

void swap_ab_gemm(Launch where, const GemmArgs& args, const NormAhead& ahead) {
  start<false>(where, args, ahead, RopeParams({}, {}, {}));
}

int num_norm_parts(const GemmArgs& args) { return args.n / find_plan(args)->rows; }

bool is_roped_gemm(const GemmArgs& args, DType dtype, const RopeParams& rope) {
  return is_swap_ab_gemm(args, dtype) && args.epilogue == Epilogue::kStore && rope.layout.tiled &&
         rope.layout.head_dim == kHeadDim && find_plan(args)->rows == kHeadDim;
}

void roped_gemm(Launch where, const GemmArgs& args, const NormAhead& ahead,
                const RopeParams& rope) {
  start<true>(where, args, ahead, rope);
}

}  // namespace nanovllm::cuda
