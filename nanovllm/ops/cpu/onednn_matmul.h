#pragma once

#include <memory>

#include "nanovllm/ops/cpu/gemm_kernels.h"

namespace nanovllm::cpu {

/// bfloat16 products of many rows through oneDNN, which has AMX; its format BA16a32b2a is the
/// layout of our panels of 32 columns, so both read the same weight. Runs on the calling thread's
/// OpenMP; calls come from one thread at a time.
class OnednnMatmul {
 public:
  OnednnMatmul();
  ~OnednnMatmul();

  /// Rows from which oneDNN beats our kernels on this processor.
  int64_t min_rows() const { return min_rows_; }
  void run(const GemmCall& call, int64_t rows);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int64_t min_rows_;
};

}  // namespace nanovllm::cpu
