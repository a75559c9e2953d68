#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/machine/isa.h"
#include "nanovllm/ops/cpu/machine/memory.h"

namespace nanovllm::cpu {

struct GemmCall;
struct GemmKernel;

/// A weight [n, k] in the layout of kernels/gemm.h, for GEMMs and for embedding; or the weights of
/// all experts, one after the other. A quantized weight has the layout of GemmKernels::e4m3 or of
/// kernels/int_gemm.h.
struct PackedWeight : Weight {
  DType dtype = DType::kF32;  ///< the model's dtype, and that of panels that are not quantized
  int64_t num_experts = 1;
  int64_t n = 0, k = 0;  ///< each expert's
  int64_t panel_bytes = 0, expert_bytes = 0;
  Buffer panels;
  std::optional<QuantizedFormat> format;  ///< if it is quantized
  int64_t group = 0, group_bytes = 0;     ///< see GemmCall
  std::vector<int32_t> order;  ///< [k] the element of x for each value of k; empty: i for i
};

/// The GEMMs of one backend. Calls are made from one thread at a time.
class Gemm {
 public:
  /// Measures which kernels multiply bfloat16 faster: those of `isa` or those of AVX-512 without
  /// BF16.
  Gemm(Isa isa, int threads);
  Gemm(Isa isa, int threads, Isa bf16_isa);

  /// The instruction set whose kernels multiply bfloat16 fastest.
  Isa bf16_isa() const { return bf16_isa_; }
  /// Backend::pack, or pack_experts() with their number. Weights are loaded by another thread than
  /// the one that runs the steps, so the helper threads of this call end with it.
  std::shared_ptr<const PackedWeight> pack(std::span<const WeightRows> parts, DType dtype,
                                           int64_t num_experts = 1) const;
  std::shared_ptr<const PackedWeight> pack(const WeightRows& matrix, DType dtype) const {
    return pack({&matrix, 1}, dtype);
  }
  /// Backend::matmul. Large ones are split over the threads of parallel_for().
  void matmul(Tensor out, Tensor x, const PackedWeight& w, Tensor bias);
  /// Backend::expert_matmul; only the weights of experts that have entries are read. Large ones are
  /// split over the threads of parallel_for().
  void expert_matmul(Tensor out, Tensor x, const PackedWeight& w, const Routing& routing,
                     Tensor rows);

 private:
  /// The kernel for GEMMs of this many rows of x.
  const GemmKernel& kernel(const PackedWeight& w, int64_t rows) const;
  /// The operands of a GEMM with this weight; x [m, k] is quantized if the kernel needs that.
  GemmCall make_call(const PackedWeight& w, Tensor x, Tensor out);

  Isa isa_;
  Isa bf16_isa_;
  int threads_;
  struct ExpertTask {
    int64_t expert, row, row_end, panel, panel_end;
  };
  std::vector<ExpertTask> tasks_;  ///< kept, so that expert_matmul() need not allocate
  Buffer scratch_;                 ///< [threads, kGemmScratchFloats]
  Scratch quantized_x_;
};

}  // namespace nanovllm::cpu
