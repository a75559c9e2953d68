#pragma once

#include <cstdint>

// Sources compiled for several instruction sets include this: no inline functions here.

namespace nanovllm::cpu {

/// The number of values of k that are summed in one chain; the chains' sums are added in order.
constexpr int64_t kGemmBlockK = 256;
/// The length of a chain with quantized weights, whose blocks of a panel become float32
/// [kQuantizedBlockK, 32].
constexpr int64_t kQuantizedBlockK = 128;
/// The number of columns of out that share a converted block of x.
constexpr int64_t kGemmGroupColumns = 512;
/// Weights are prefetched into the L2 cache this many panels ahead.
constexpr int64_t kPrefetchPanels = 4;
/// Most rows of one task: its blocks of x and of out stay in a 1 MiB L2.
constexpr int64_t kGemmTaskRows = 120;
/// Scratch memory of one thread: a block of x [kGemmTaskRows, kGemmBlockK], of out [kGemmTaskRows,
/// kGemmGroupColumns] and of a panel, float32.
constexpr int64_t kGemmScratchFloats =
    kGemmTaskRows * (kGemmBlockK + kGemmGroupColumns) + kGemmBlockK * 32;

/// out [m, n] = x [m, k] w^T + bias, w packed into panels of a few columns of out: [panels, k,
/// columns] of its dtype, and for bfloat16 [panels, k / 2, columns, 2]. k is rounded up to a
/// multiple of 32 in bfloat16; all padding is zero.
struct GemmCall {
  const void* x = nullptr;        ///< [m, k] of the weight's dtype
  int64_t x_stride = 0;           ///< elements from row to row
  const int32_t* rows = nullptr;  ///< [m] the row of x for each row of out; null: row i for row i
  const void* panels = nullptr;
  int64_t panel_bytes = 0;
  const float* bias = nullptr;  ///< [n] or none
  void* out = nullptr;          ///< [m, n] of the weight's dtype or float32
  int64_t out_stride = 0;
  bool out_f32 = false;
  int64_t n = 0, k = 0;
  // Only for quantized weights:
  int64_t group = 0;        ///< values of k that share a scale
  int64_t group_bytes = 0;  ///< from group to group of a panel
  int64_t x_group = 0;      ///< for integers: values of x that share a scale
};

/// The bits of an E4M3 number are those of a float16 that is as many times smaller.
constexpr float kE4M3Unit = 256;

/// A kernel of one instruction set.
struct GemmKernel {
  int64_t panel_columns;
  int64_t tile_rows;  ///< the rows of a task should be a multiple of it
  /// Computes rows [row, row_end), at most kGemmTaskRows, of the columns of panels
  /// [panel, panel_end).
  void (*task)(const GemmCall&, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end,
               float* scratch);
};

constexpr int64_t kFewestManyRows = 4;
/// Kernels of one instruction set for a model of one dtype.
struct GemmKernels : GemmKernel {
  /// A kernel that is faster from kFewestManyRows rows of x on. It has a task only with AMX.
  GemmKernel many_rows;
  /// The kernel for weights in E4M3. For each group of k a panel has the values [count, columns]
  /// and the scales [columns] float32, which are kE4M3Unit times larger than the weight's.
  GemmKernel e4m3;
  /// Makes a panel out of rows [panel_columns, k] of its dtype.
  void (*pack)(void* panel, const void* rows, int64_t k);
  /// Writes the row [k] that pack() made column `column` of the panel.
  void (*unpack_row)(void* row, const void* panel, int64_t column, int64_t k);
};

}  // namespace nanovllm::cpu
