#include <cmath>

#include "nanovllm/ops/cuda/gemm/small_gemm.cuh"
#include "nanovllm/ops/cuda/gemm/small_swiglu.cuh"

// The choice of the kernel for GEMMs of few tokens with weights that are not quantized.
// small_gemm.cuh and small_swiglu.cuh have the kernels.
namespace nanovllm::cuda {
namespace {

/// Calls the kernel that suits the shape. The number of bytes of weights in flight decides how fast
/// it is: a ring of 64 or 96 KB for each of up to two thread blocks on a multiprocessor. Every
/// thread block computes the norm anew, so it should have many columns if that takes long.
template <class T, int kTokenTiles>
void run_shape(Launch where, const GemmArgs& args) {
  const auto fits = [&](int columns, int residents) {
    return (args.n + columns - 1) / columns <= where.num_sms * residents;
  };
  // Rings of 96 KB with the norm's weights have room twice on a multiprocessor of Hopper, if k is
  // not large. On GPUs with 99 KB for a thread block, they have none at all.
  const bool is_deep = args.k > 4096;
  constexpr int64_t kLargeRing = 96 << 10, kStatic = 1024;
  const bool has_room = kLargeRing + int64_t{args.k} * 4 + kStatic <= where.shared_bytes;
  if (args.epilogue == Epilogue::kSwiglu) {
    // Thread blocks that run at the same time form a wave; the last one may be small.
    const auto waves = [&](int columns) {
      return static_cast<double>((args.n + columns - 1) / columns) / (2 * where.num_sms);
    };
    // Beyond one wave small_swiglu() is faster, where its shared memory suffices.
    const auto waste = [&](int columns) { return std::ceil(waves(columns)) / waves(columns); };
    if (waves(24) > 1 && supports_small_swiglu<T>(where, args)) small_swiglu<T>(where, args);
    else if (!has_room || (is_deep && args.num_tokens <= 2))
      run_small_gemm<T, FewTile::kSwiglu, true, kTokenTiles, 1, 4, 2>(where, args);
    else if (waves(24) > 1 && waste(16) < 0.8 * waste(24))
      run_small_gemm<T, FewTile::kSwiglu, true, kTokenTiles, 2, 3, 3>(where, args);
    else run_small_gemm<T, FewTile::kSwiglu, true, kTokenTiles, 3, 2, 2>(where, args);
  } else if (args.norm != nullptr) {
    if (has_room && !fits(32, 2))
      run_small_gemm<T, FewTile::kWhole, true, kTokenTiles, 3, 2, 2>(where, args);
    else if (!has_room || is_deep)
      run_small_gemm<T, FewTile::kWhole, true, kTokenTiles, 2, 2, 2>(where, args);
    else run_small_gemm<T, FewTile::kWhole, true, kTokenTiles, 2, 3, 3>(where, args);
  } else {
    if (fits(16, 2))
      run_small_gemm<T, FewTile::kWhole, false, kTokenTiles, 1, 6, 6 / kTokenTiles>(where, args);
    else if (fits(16, 3))
      run_small_gemm<T, FewTile::kWhole, false, kTokenTiles, 1, 4, 4 / kTokenTiles>(where, args);
    else run_small_gemm<T, FewTile::kWhole, false, kTokenTiles, 2, 3, 3>(where, args);
  }
}

constexpr int64_t kMaxNormK = 8192;  // the norm's weights are in shared memory
// With more columns (logits) cuBLASLt runs near the speed of the memory, and so it does with more
// weights than kMaxWeights for more than 8 tokens.
constexpr int64_t kMaxColumns = 65536, kMaxWeights = 20'000'000;

}  // namespace

bool prefers_small_gemm(const GemmArgs& args, DType dtype) {
  const bool is_swiglu = args.epilogue == Epilogue::kSwiglu;
  const int64_t rows = is_swiglu ? int64_t{2} * args.n : args.n;
  return args.num_tokens <= kFewTokens && (args.num_tokens <= 8 || rows * args.k <= kMaxWeights) &&
         args.n % 16 == 0 && args.n <= kMaxColumns && args.k % PlainFormat<Bf16>::kChunk == 0 &&
         (args.k <= kMaxNormK || args.norm == nullptr) && (!is_swiglu || args.norm != nullptr) &&
         dtype_size(dtype) == 2;
}

void small_gemm(Launch where, const GemmArgs& args, DType dtype) {
  check_args(prefers_small_gemm(args, dtype),
             "small_gemm: a shape or dtype that it does not compute");
  with_16bit_type(dtype, [&](auto type) {
    using T = decltype(type);
    if (args.num_tokens <= 8) run_shape<T, 1>(where, args);
    else run_shape<T, 2>(where, args);
  });
}

}  // namespace nanovllm::cuda
