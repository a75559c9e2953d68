#pragma once

#include <memory>
#include <span>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/machine/isa.h"

namespace nanovllm::cpu {

class OnednnMatmul;

/// A weight [n, k] in the layout of kernels/gemm.h, for GEMMs and for embedding.
struct PackedWeight : Weight {
  DType dtype = DType::kF32;  ///< of the model, and of the panels
  int64_t n = 0, k = 0;
  int64_t panel_bytes = 0;
  Buffer panels;
};

/// The GEMMs of one backend. Calls are made from one thread at a time.
class Gemm {
 public:
  Gemm(Isa isa, int threads);
  ~Gemm();

  /// Backend::pack. Weights are loaded by another thread than the one that runs the steps, so the
  /// helper threads of this call end with it.
  std::shared_ptr<const PackedWeight> pack(std::span<const WeightRows> parts, DType dtype) const;
  std::shared_ptr<const PackedWeight> pack(const WeightRows& matrix, DType dtype) const {
    return pack({&matrix, 1}, dtype);
  }
  /// Backend::matmul. Large ones are split over the threads of parallel_for().
  void matmul(Tensor out, Tensor x, const PackedWeight& w, Tensor bias);

 private:
  Isa isa_;
  int threads_;
  Buffer scratch_;                        ///< [threads, kGemmScratchFloats]
  std::unique_ptr<OnednnMatmul> onednn_;  ///< with AVX512-BF16
};

}  // namespace nanovllm::cpu
