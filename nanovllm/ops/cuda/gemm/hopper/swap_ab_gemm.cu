#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_gemm.h"

#include <algorithm>
#include <optional>

#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_kernel.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/hopper/hopper_gemms.h"

//   out [T, n] = x w^T + bias, out += x w^T, or SwiGLU (Epilogue), for 9 to 64 tokens T on Hopper.
// The operands are swapped (swap-AB): the rows of w are wgmma's M, 64 for each warpgroup, and the
// tokens are its N, 32 or 64. With the tokens as M, half of a tile or more would be padding. Memory
// bandwidth bounds it, because the weights are read once, and the latency from one kernel to the
// next.
//
// A thread block computes some rows of w for one part of k (split-K), and the thread blocks of a
// cluster compute the other parts of k for the same rows. Each finishes some of the tokens: the
// others send it their sums of these tokens, which it adds in the order of k. TMA copies w and x
// into one ring of stages, and as much of w as the ring holds is prefetched before the previous
// kernel has ended. The epilogue adds bias or residual, computes SwiGLU, and begins or finishes a
// DeferredNorm. If the rows of a thread block are heads of q, k or v, the epilogue also does their
// norm, the rotation and the store into the cache. Read swap_ab_kernel.cuh for the kernel, and
// swap_ab_block.cuh for the thread block's code.
namespace nanovllm::cuda {
using namespace swap_ab;
namespace {

/// The most parts of a norm that this GEMM begins. The next GEMM adds all of them for each token.
constexpr int kMostNormParts = 128;
/// The ring of a thread block, if one, two or three thread blocks run on a multiprocessor.
constexpr int kRingBytes[] = {200 << 10, 100 << 10, 72 << 10};
/// The dimension of the heads that the epilogue rotates; 0 if it rotates none.
int head_dim(const GemmArgs& args) { return args.rope != nullptr ? args.rope->layout.head_dim : 0; }

/// The configuration for a GEMM with a quantized weight.
std::optional<SwapAbConfig> find_quantized_config(Launch where, const GemmArgs& args) {
  const bool swiglu = args.epilogue == Epilogue::kSwiglu;
  const int total_rows = (swiglu ? 2 : 1) * args.n;
  const int tokens = args.num_tokens <= 32 ? 32 : kSwapAbTokens;
  const int num_chunks = (args.k + kQuantizedChunk - 1) / kQuantizedChunk;
  if (args.k % 8 != 0) return {};
  // Consumers that convert w need all of a multiprocessor: its ring is large, and two warpgroups at
  // least convert. If x is quantized too, nothing is converted, and it is faster to let the next
  // kernel start early, which needs memory for a second thread block.
  const int residents = args.has_e4m3_x ? 2 : 1;
  // A wave of thread blocks takes as long as one of them, plus the time to begin, which is about
  // that of 32 rows. The epilogue without SwiGLU suits no more than 128 rows.
  const int slots = residents * where.num_sms;
  const int most_rows = swiglu && residents == 1 ? 256 : 128;
  int rows = 0, least = 0;
  for (int more = std::max(64, head_dim(args)); more <= most_rows; more += 64) {
    const int cost = (total_rows / more + slots - 1) / slots * (more + 32);
    const bool is_better = residents == 2 || rows == 0 || cost < least;
    if (total_rows % more == 0 && is_better) rows = more, least = cost;
  }
  if (rows == 0 || (args.epilogue == Epilogue::kAdd && args.n / rows > kMostNormParts)) return {};
  constexpr int kLeastChunks = 4;  // chunks of a part of k
  int split = 1;
  for (int more = 2; more <= kMaxSplit; more *= 2) {
    // Clusters of four or more do not fill every group of multiprocessors.
    const int usable = residents * (more == 2 ? where.num_sms : where.num_sms * 6 / 7);
    if (total_rows / rows * more <= usable && num_chunks >= more * kLeastChunks) split = more;
  }
  const int stage_bytes = quantized_stage_bytes(args, rows, tokens);
  return SwapAbConfig{
      .rows = rows,
      .split = split,
      .stages = std::min(kRingBytes[residents - 1] / stage_bytes, (num_chunks + split - 1) / split),
      .consumers = std::max(2, rows / 64) * 128};
}

/// The configuration for a GEMM, or none if it has too many rows. The rules were found on an H200
/// with chains of the GEMMs of 15 models from 0.36B to 32B, at 24, 40 and 64 tokens;
/// docs/kernels.md has the reasons.
std::optional<SwapAbConfig> find_config(Launch where, const GemmArgs& args) {
  if (args.quantized != nullptr) return find_quantized_config(where, args);
  const int total_rows = (args.epilogue == Epilogue::kSwiglu ? 2 : 1) * args.n;
  const int tokens = args.num_tokens <= 32 ? 32 : kSwapAbTokens;
  const int rows = std::max(64, head_dim(args));
  const int num_chunks = args.k / kChunk;
  if (total_rows % rows != 0 || args.k % kChunk != 0) return {};
  if (args.epilogue == Epilogue::kAdd && args.n / rows > kMostNormParts) return {};
  // All thread blocks run at the same time. Clusters of four or more do not fill every group of
  // multiprocessors.
  const int most_resident = std::size(kRingBytes);
  const auto residents = [&](int split) {
    const int usable = split <= 2 ? where.num_sms : where.num_sms * 6 / 7;
    return (total_rows / rows * split + usable - 1) / usable;
  };
  if (residents(1) > most_resident) return {};
  // The more a GEMM is split, the more of w is loaded at once, and the more sums are exchanged. So
  // a thread block needs this many rows times chunks for each part of k.
  const int least_work = tokens == 32 ? 32 : 40;
  // With this many chunks for a thread block, a large ring gains more than another split.
  constexpr int kLongPart = 24;
  int split = 1;
  for (int more = 2; more <= kMaxSplit; more *= 2) {
    const int chunks = (num_chunks + more - 1) / more;
    const bool is_balanced =
        residents(split) == 1 && total_rows / rows * split >= where.num_sms * 15 / 16;
    if (is_balanced && num_chunks >= kLongPart * split) break;
    const bool is_enough = chunks * rows >= least_work * more;
    if (num_chunks >= more && is_enough && residents(more) <= most_resident) split = more;
  }
  const int most_stages =
      kRingBytes[residents(split) - 1] / (rows * kChunkBytes + tokens * kChunkBytes);
  return SwapAbConfig{rows, split, std::min((num_chunks + split - 1) / split, most_stages),
                      rows / 64 * 128};
}

}  // namespace

bool prefers_swap_ab_gemm(Launch where, const GemmArgs& args, DType dtype) {
  // The kernels of few tokens compute the norm before SwiGLU too, and convert int4 with fewer
  // instructions.
  const QuantizedWeight* const w = args.quantized;
  const bool suits_few =
      w == nullptr ? args.epilogue == Epilogue::kSwiglu : w->format == QuantizedFormat::kInt4;
  const int64_t fewest = suits_few ? kFewTokens + 1 : kFewestSwapAbTokens;
  // Float16 could overflow before a deferred norm divides.
  if (dtype != DType::kBF16 || args.num_tokens < fewest || args.num_tokens > kSwapAbTokens)
    return false;
  if (args.rope != nullptr && !(args.rope->layout.tiled && head_dim(args) <= 128)) return false;
  const std::optional<SwapAbConfig> config = find_config(where, args);
  // With SwiGLU tile_gemm() is faster, because it reads x less often; but not if a norm would have
  // to be computed before it and all weights fit into the rings before x is known.
  const int64_t ring_bytes = int64_t{kRingBytes[0]} * where.num_sms;
  const bool is_small = args.norm != nullptr && int64_t{4} * args.n * args.k <= ring_bytes;
  return config.has_value() &&
         (args.epilogue != Epilogue::kSwiglu || is_small || args.quantized != nullptr);
}

void swap_ab_gemm(Launch where, const GemmArgs& args, const DeferredNorm& norm) {
  const std::optional<SwapAbConfig> config = find_config(where, args);
  check_args(config.has_value(), "swap_ab_gemm: a shape that it does not support");
  if (args.quantized != nullptr) return quantized_swap_ab_gemm(where, args, *config, norm);
  run_swap_ab<PlainOperands>(where, args, *config, norm);
}

int num_norm_parts(Launch where, const GemmArgs& args) {
  return args.n / find_config(where, args)->rows;
}

}  // namespace nanovllm::cuda
