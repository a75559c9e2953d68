#pragma once

#include <cstdint>

// Included by files compiled for one instruction set: no inline functions here.

namespace nanovllm::cpu {

constexpr int64_t kGemmBlockK =
    256;  ///< products summed in one chain; the chains' sums are added in order
constexpr int64_t kGemmGroupColumns = 512;  ///< columns of out that share a converted block of x
constexpr int64_t kGemmTaskRows =
    120;  ///< most rows of one task: its blocks of x and of out stay in a 1 MiB L2
/// Of one thread: a block of x [kGemmTaskRows, kGemmBlockK] and of out [kGemmTaskRows,
/// kGemmGroupColumns], float32.
constexpr int64_t kGemmScratchFloats = kGemmTaskRows * (kGemmBlockK + kGemmGroupColumns);

/// out [m, n] = x [m, k] w^T + bias, w packed into panels of a few columns of out: [panels, k,
/// columns] of its dtype, and for bfloat16 [panels, k / 2, columns, 2]. k is rounded up to a
/// multiple of 32 in bfloat16; all padding is zero.
struct GemmCall {
  const void* x = nullptr;  ///< [m, k] of the weight's dtype
  int64_t x_stride = 0;     ///< elements from row to row
  const void* panels = nullptr;
  int64_t panel_bytes = 0;
  const float* bias = nullptr;  ///< [n] or none
  void* out = nullptr;          ///< [m, n] of the weight's dtype or float32
  int64_t out_stride = 0;
  bool out_f32 = false;
  int64_t n = 0, k = 0;
};

/// A row of a weight before it is packed; no data: a row of zeros.
struct GemmRow {
  const void* data = nullptr;
  int dtype = 0;  ///< 0: float32, 1: bfloat16, 2: float16
};

/// Tables of functions are indexed by the weight's dtype: float32, bfloat16, float16.
struct GemmKernels {
  int64_t panel_columns;
  int64_t tile_rows;  ///< rows of a task should be a multiple of it
  /// Rows [row, row_end) of the columns of panels [panel, panel_end); at most kGemmTaskRows rows.
  using Task = void (*)(const GemmCall&, int64_t row, int64_t row_end, int64_t panel,
                        int64_t panel_end, float* scratch);
  Task task[3];
  /// A panel out of panel_columns rows of k elements.
  using Pack = void (*)(void* panel, const GemmRow* rows, int64_t k);
  Pack pack[3];
};

namespace plain {
extern const GemmKernels kGemmKernels;
}
namespace avx2 {
extern const GemmKernels kGemmKernels;
}
namespace avx512 {
extern const GemmKernels kGemmKernels;
}
namespace avx512bf16 {
extern const GemmKernels kGemmKernels;
}

}  // namespace nanovllm::cpu
