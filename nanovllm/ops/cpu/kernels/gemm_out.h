// How the GEMMs of one instruction set divide columns, and write their sums. Like simd.h, this is
// only for sources in kernels/, and everything in it is local to them.
#pragma once

#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/kernels/simd.h"

namespace nanovllm::cpu::NANOVLLM_ISA {
namespace {

constexpr int kColumns = 2 * kLanes;  // columns of a panel
constexpr int64_t kGroupPanels = kGemmGroupColumns / kColumns;

/// out = sums [rows, columns], whose rows are kGemmGroupColumns apart, + bias.
template <class Out>
void store_out(Out* out, int64_t out_stride, const float* sums, const float* bias, int64_t rows,
               int64_t columns) {
  for (int64_t r = 0; r < rows; ++r)
    for_each_vector(columns, [&](int64_t i, auto ld, auto st) {
      const F32 v = ld(sums + r * kGemmGroupColumns + i);
      st(out + r * out_stride + i, bias ? v + ld(bias + i) : v);
    });
}

/// Stores sums as the rows of call.out from `row` on and the columns of the panels from `panel` on.
/// T is the model's dtype.
template <class T>
void store_panels(const GemmCall& call, const float* sums, int64_t row, int64_t rows, int64_t panel,
                  int64_t panels) {
  const int64_t column = panel * kColumns;
  const int64_t columns = call.n - column < panels * kColumns ? call.n - column : panels * kColumns;
  const float* bias = call.bias ? call.bias + column : nullptr;
  const int64_t at = row * call.out_stride + column;
  if (call.out_f32)
    store_out(static_cast<float*>(call.out) + at, call.out_stride, sums, bias, rows, columns);
  else store_out(static_cast<T*>(call.out) + at, call.out_stride, sums, bias, rows, columns);
}

}  // namespace
}  // namespace nanovllm::cpu::NANOVLLM_ISA
