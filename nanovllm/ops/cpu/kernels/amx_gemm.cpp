// GEMMs of bfloat16 by AMX (amx.h). Each output is summed in the order of k, so the bits of a row
// do not depend on the number of rows. gemm.h has the layout and the contract.
#if defined(__AMX_BF16__)
#include "nanovllm/ops/cpu/kernels/amx.h"
#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/kernels/gemm_out.h"

namespace nanovllm::cpu::NANOVLLM_ISA {

/// GemmKernel::task, in tiles of 16 or 32 rows. A block of x has as much of k as fits into the
/// scratch memory.
void amx_task(const GemmCall& call, int64_t row, int64_t row_end, int64_t panel, int64_t panel_end,
              float* scratch) {
  constexpr int64_t kBlockElements = kGemmTaskRows * kGemmBlockK * 2;
  const int64_t rows = row_end - row;
  const int64_t padded_rows = (rows + kAmxRows - 1) / kAmxRows * kAmxRows;
  const int64_t most_k = kBlockElements / padded_rows / kAmxK * kAmxK, x_stride = most_k;
  auto* const x = reinterpret_cast<Bf16*>(scratch);
  float* const sums = scratch + kGemmTaskRows * kGemmBlockK;
  const int64_t panel_stride = call.panel_bytes / static_cast<int64_t>(sizeof(Bf16));
  // With few rows, reading w takes all of the time, so w is prefetched.
  constexpr int64_t kAhead = 32 << 10;
  const int64_t ahead = rows <= 2 * kAmxRows ? kAhead : 0;
  const TileRegisters registers;
  for (int64_t group = panel; group < panel_end; group += kGroupPanels) {
    const int64_t panels = panel_end - group < kGroupPanels ? panel_end - group : kGroupPanels;
    const Bf16* const group_w = static_cast<const Bf16*>(call.panels) + group * panel_stride;
    for (int64_t begin = 0; begin < call.k; begin += most_k) {
      const int64_t k = call.k - begin < most_k ? call.k - begin : most_k;
      const int64_t padded_k = (k + kAmxK - 1) / kAmxK * kAmxK;
      for (int64_t r = 0; r < rows; ++r) {
        Bf16* const to = x + r * x_stride;
        const Bf16* const from = static_cast<const Bf16*>(call.x) + begin +
                                 (call.rows ? call.rows[row + r] : row + r) * call.x_stride;
        __builtin_memcpy(to, from, static_cast<size_t>(k) * sizeof(Bf16));
        __builtin_memset(to + k, 0, static_cast<size_t>(padded_k - k) * sizeof(Bf16));
      }
      for (int64_t p = 0; p < panels; ++p) {
        const Bf16* const w = group_w + p * panel_stride + begin * kColumns;
        float* const out = sums + p * kColumns;
        for (int64_t r = 0; r < padded_rows; r += 2 * kAmxRows)
          multiply_bf16_rows(padded_rows - r, {out + r * kGemmGroupColumns, kGemmGroupColumns * 4},
                             begin == 0, {x + r * x_stride, x_stride * 2}, {w, kColumns * 4},
                             padded_k, ahead);
      }
    }
    store_panels<Bf16>(call, sums, row, rows, group, panels);
  }
}

}  // namespace nanovllm::cpu::NANOVLLM_ISA
#endif
