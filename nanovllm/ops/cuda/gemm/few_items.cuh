#pragma once

#include "nanovllm/ops/cuda/gemm/few_multiply.cuh"

// The main loop of the GEMMs of few tokens: the dense ones (small_gemm.cuh), those with SwiGLU
// (swiglu_items.cuh: the MLP and gate and up of experts) and the quantized ones
// (quantized/small.cuh). They differ in where x is, and in what they do with the sums.
//
// An item is kTiles tiles of w, for all tokens. A thread block computes one item, or, if kLoops,
// every gridDim.x-th one. Its warps divide the chunks of k of each item. A warp copies its chunks
// of w into a ring of its own, as many chunks ahead as the ring has stages, beyond the end of an
// item into the next one. After an item the kernel adds the sums of the warps.
namespace nanovllm::cuda {

constexpr int kFewWarps = 8, kFewThreads = kFewWarps * 32;

/// Which 16 rows of w one matrix instruction multiplies (a tile).
enum class FewTile {
  kWhole,   // 16 columns of out
  kSwiglu,  // the gates of 8 columns, then their ups
};
template <FewTile kTile>
inline constexpr int kTileColumns = kTile == FewTile::kWhole ? 16 : 8;

/// Where the weights of an item are: its columns of out begin at `column`, and row `row` of w gives
/// column 0.
struct ItemPlace {
  int64_t row;
  int column;
};
/// The place of each item of a weight that has no experts.
template <int kColumns>
struct PlaceInWeight {
  __device__ ItemPlace operator()(int item) const { return {0, item * kColumns}; }
};

/// A step of the main loop: the shared address of its stage, its chunk of k, and its place among
/// the unrolled steps, which is a constant.
struct FewStep {
  uint32_t stage;
  int chunk, place;
};

/// The items of a thread block, and the ring of this warp. place_of(item) is an ItemPlace. If
/// kXInRing, a chunk of x follows that of w in each stage.
template <class Format, FewTile kTile, int kTiles, int kStages, bool kLoops, bool kXInRing,
          class PlaceOf = PlaceInWeight<kTiles * kTileColumns<kTile>>>
struct FewItems {
  const QuantizedWeight& w;
  int n, num_chunks, num_items;
  uint32_t ring, stage;  // shared addresses: of the ring, and of the stage that is multiplied next
  int stage_bytes;
  PlaceOf place_of;
  // The item and the chunk of k that this warp copies next, and where it copies them from.
  int item, chunk;
  ChunkSource<Format, kTiles> source;

  /// `rings` has the rings of all warps.
  __device__ FewItems(const QuantizedWeight& w_, int n_, int k, int num_items_, uint32_t rings,
                      int stage_bytes_, const PlaceOf& place_of_ = {})
      : w(w_),
        n(n_),
        num_chunks((k + Format::kChunk - 1) / Format::kChunk),
        num_items(num_items_),
        ring(rings + threadIdx.x / 32 * kStages * stage_bytes_),
        stage(ring),
        stage_bytes(stage_bytes_),
        place_of(place_of_),
        item(blockIdx.x),
        chunk(threadIdx.x / 32) {}

  __device__ bool has_next() const { return kLoops ? item < num_items : chunk < num_chunks; }
  __device__ __forceinline__ void begin_item() {
    const ItemPlace place = place_of(item);
    // A tile behind the last column repeats the last tile, and its sums are not stored.
    source.begin(w, threadIdx.x / 32, [&](int tile, int row) {
      return place.row + min(place.column + tile * kTileColumns<kTile>, n - kTileColumns<kTile>) +
             row % 8 + row / 8 * (kTile == FewTile::kSwiglu ? n : 8);
    });
  }
  /// Copies the next chunk of w, if has_next().
  __device__ __forceinline__ void fetch(uint32_t to) {
    source.fetch(to, kFewWarps);
    chunk += kFewWarps;
    if (!kLoops || chunk < num_chunks) return;
    chunk = threadIdx.x / 32, item += gridDim.x;
    if (item < num_items) begin_item();
  }
  /// Fills the ring with w, and returns how many stages it has filled. The thread block must have
  /// an item. If kXInRing, the caller then copies x into these stages, and ends a group of copies
  /// for each stage of the ring.
  __device__ __forceinline__ int begin() {
    begin_item();
    if (chunk >= num_chunks) item = num_items;  // this warp has no chunk of any item
    int num_filled = 0;
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (has_next()) fetch(ring + i * stage_bytes), ++num_filled;
      if constexpr (!kXInRing) commit_async_copies();
    }
    return num_filled;
  }

  /// acc, and `odd` (multiply_chunk()), += this warp's part of the next item. The loop is unrolled
  /// by kSteps. load_x(x, step) loads a lane's part of x. When fetch_x(step) is called, the lane is
  /// done with that part. If kXInRing, it copies the chunk of x for the chunk of w that has just
  /// been copied.
  template <int kSteps, int kTokenTiles, class LoadX, class FetchX>
  __device__ __forceinline__ void multiply(float (&acc)[kTiles][kTokenTiles][4], float (&odd)[4],
                                           const LoadX& load_x, const FetchX& fetch_x) {
    // Without scales, and if x is not in the ring, a lane reads only what it has copied itself.
    constexpr bool kShares = Format::kScaled || kXInRing;
    static_assert(kSteps == 1 || (kSteps % kStages == 0 && !kLoops));
#pragma unroll 1
    for (int first = threadIdx.x / 32; first < num_chunks; first += kSteps * kFewWarps) {
#pragma unroll
      for (int place = 0; place < kSteps; ++place) {
        const FewStep step = {kSteps > 1 ? ring + place % kStages * stage_bytes : stage,
                              first + place * kFewWarps, place};
        if (kSteps > 1 && step.chunk >= num_chunks) break;
        uint4 x[kTokenTiles][Format::kGroups];
        if constexpr (!kXInRing) load_x(x, step);
        wait_async_copies<kStages - 1>();
        if constexpr (kShares) __syncwarp();  // other lanes have copied x or scales
        if constexpr (kXInRing) load_x(x, step);
        multiply_chunk<Format>(acc, odd, step.stage, x, w);
        if constexpr (kShares) __syncwarp();  // all lanes have read what is overwritten now
        if (has_next()) {
          fetch(step.stage);
          if constexpr (kXInRing) fetch_x(step);
        }
        if constexpr (!kXInRing) fetch_x(step);
        commit_async_copies();
        stage = stage + stage_bytes == ring + kStages * stage_bytes ? ring : stage + stage_bytes;
      }
    }
  }
};

/// y plus the sum of all warps, whose sums are `stride` floats apart, added in their order.
__device__ __forceinline__ float add_warps(float y, const float* from, int stride) {
#pragma unroll
  for (int warp = 0; warp < kFewWarps; ++warp) y += from[warp * stride];
  return y;
}

}  // namespace nanovllm::cuda
