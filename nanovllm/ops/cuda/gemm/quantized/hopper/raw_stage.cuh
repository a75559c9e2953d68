#pragma once

#include "nanovllm/ops/cuda/device/hopper.cuh"
#include "nanovllm/ops/cuda/device/tensor_map.cuh"
#include "nanovllm/ops/cuda/gemm/quantized/weight_formats.cuh"

// How the GEMMs for Hopper copy a quantized weight into shared memory. A stage has kQuantizedChunk
// columns: first the values of its rows, which TMA swizzles so that neither a warp that reads 16
// bytes of each of 32 rows nor one that reads whole rows has bank conflicts, then the words of
// their scales. Both come in boxes, a box for each range of rows that are neighbours in the matrix.
namespace nanovllm::cuda {

/// The tensor maps and numbers with which a kernel copies and scales a quantized weight.
struct RawWeight {
  CUtensorMap values, scales;
  QuantizedWeight weight;
  int scale_bytes;  // bytes of the scales of a box
};

/// Format is one of weight_formats.cuh. Its kFine says that groups may have their own scales, and
/// QuantizedWeight::group_shift says whether they have.
template <class Format>
struct RawStage {
  static constexpr int kRowBytes = Format::kPieces * 64;
  static constexpr int kScaleGroups = Format::kFine ? Format::kGroups : 1;
  /// A copy of the scales of E4M3's blocks has kBlockRows rows, as many rows of blocks as the rows
  /// of a box can touch, of kBlockWords words, the least that TMA copies. It begins at a multiple
  /// of kBlockWords.
  static constexpr int kBlockWords = 4, kBlockRows = 3;

  /// The number of bytes from the scales of a box to those of the next one.
  static __host__ __device__ constexpr int scale_stride(int box_rows) {
    return (box_rows * 4 * kScaleGroups + 127) / 128 * 128;
  }
  static __host__ __device__ constexpr int bytes(int rows, int boxes) {
    return (rows * kRowBytes + boxes * scale_stride(rows / boxes) + 1023) / 1024 * 1024;
  }

  /// The offset of piece `index`, 16 bytes, of a row of the stage.
  static __device__ __forceinline__ int piece(int row, int index) {
    const int swizzle = kRowBytes == 128 ? row % 8 : row / 2 % 4;
    return row * kRowBytes + (index ^ swizzle) * 16;
  }
  /// The offset of the first scale of a row of the stage. The row is in box `box`, which begins
  /// with row `first` of the matrix.
  static __device__ __forceinline__ int scale(const QuantizedWeight& w, int rows, int boxes,
                                              int row, int box, int first) {
    const int box_rows = rows / boxes, shift = w.row_shift;
    const int word = ((first + row % box_rows) >> shift) - (first >> shift);
    return rows * kRowBytes + box * scale_stride(box_rows) +
           word * (shift > 0 ? kBlockWords : 1) * 4;
  }
  /// The distance from scale() to the scale of the stage's chunk of k.
  static __device__ __forceinline__ int chunk_offset(const QuantizedWeight& w, int chunk) {
    return w.row_shift > 0 ? chunk % kBlockWords * 4 : 0;
  }
  /// The distance from a row's scale to that of the next 32 columns; 0 if these have the same one.
  static __device__ __forceinline__ int next_group(const QuantizedWeight& w, int box_rows) {
    return w.group_shift == 5 ? box_rows * 4 : 0;
  }

  /// Copies a box of the stage at `stage`. The box begins with row `first` of the matrix.
  static __device__ __forceinline__ void copy(const RawWeight& w, uint32_t stage, int rows,
                                              int boxes, int box, int chunk, int first,
                                              uint32_t barrier) {
    const int box_rows = rows / boxes;
    hopper::box_copy(stage + box * box_rows * kRowBytes, w.values, chunk * kRowBytes, first,
                     barrier);
    const int group = chunk * kQuantizedChunk >> w.weight.group_shift;
    const bool has_blocks = w.weight.row_shift > 0;
    hopper::box_copy(stage + rows * kRowBytes + box * scale_stride(box_rows), w.scales,
                     has_blocks ? group / kBlockWords * kBlockWords : first,
                     has_blocks ? first >> w.weight.row_shift : group, barrier);
  }
  /// The bytes of all copies of a stage.
  static __device__ __forceinline__ uint32_t copied_bytes(const RawWeight& w, int rows, int boxes) {
    return static_cast<uint32_t>(rows * kRowBytes + boxes * w.scale_bytes);
  }

  /// The parameters for boxes of this many rows.
  static RawWeight params(const QuantizedWeight& w, int box_rows) {
    const bool has_blocks = w.row_shift > 0, is_fine = w.group_shift == 5;
    check_args(is_fine <= Format::kFine && (!has_blocks || w.row_shift == 7),
               "a quantized weight with scales that its format does not have");
    const int num_groups = w.group_shift == kWholeShift ? 1 : w.padded_columns() >> w.group_shift;
    const int scale_columns = has_blocks ? kBlockWords : box_rows;
    const int scale_rows = has_blocks ? kBlockRows : is_fine ? kScaleGroups : 1;
    return {.values = tensor_map({.data = w.values,
                                  .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                  .rows = w.n,
                                  .columns = w.row_bytes(),
                                  .row_bytes = w.row_bytes(),
                                  .box_rows = box_rows,
                                  .box_columns = kRowBytes,
                                  .swizzle = kRowBytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B
                                                              : CU_TENSOR_MAP_SWIZZLE_64B}),
            .scales = tensor_map({.data = w.scales,
                                  .type = CU_TENSOR_MAP_DATA_TYPE_UINT32,
                                  .rows = has_blocks ? (w.n + 127) / 128 : num_groups,
                                  .columns = has_blocks ? w.row_stride : w.n,
                                  .row_bytes = int64_t{4} * (has_blocks ? w.row_stride : w.n),
                                  .box_rows = scale_rows,
                                  .box_columns = scale_columns,
                                  .swizzle = CU_TENSOR_MAP_SWIZZLE_NONE}),
            .weight = w,
            .scale_bytes = scale_rows * scale_columns * 4};
  }
};

}  // namespace nanovllm::cuda
