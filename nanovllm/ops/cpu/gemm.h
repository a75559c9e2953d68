#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/gemm_kernels.h"
#include "nanovllm/ops/cpu/isa.h"
#include "nanovllm/ops/cpu/onednn_matmul.h"

namespace nanovllm::cpu {

/// A weight [n, k] as matrix products read it, and as a table of rows.
struct PackedWeight : Weight {
  DType dtype = DType::kF32;  ///< the model's, and of the panels
  int64_t n = 0, k = 0;
  int64_t panel_bytes = 0;
  Buffer panels;             ///< gemm_kernels.h has the layout; none without kForMatmul
  std::vector<Tensor> rows;  ///< [n_i, k] as they were read, with kForEmbedding alone
  std::vector<Buffer> row_memory;
};

/// Matrix products of one backend. Calls are made from one thread at a time.
class Gemm {
 public:
  Gemm(Isa isa, int threads);

  /// Backend::pack, with its own threads.
  std::shared_ptr<const PackedWeight> pack(std::span<const WeightRows> parts, DType dtype,
                                           unsigned use) const;
  std::shared_ptr<const PackedWeight> pack(const WeightRows& matrix, DType dtype,
                                           unsigned use) const {
    return pack({&matrix, 1}, dtype, use);
  }
  /// Backend::matmul, in a parallel region of the calling thread's OpenMP where it pays.
  void matmul(Tensor out, Tensor x, const PackedWeight& w, Tensor bias);

 private:
  /// Calls work(task) for each task of [0, num_tasks), on threads of its own: the thread that loads
  /// is not the one that runs the steps and keeps helpers.
  void for_each(int64_t num_tasks, const std::function<void(int64_t)>& work) const;

  void read_rows(PackedWeight& w, std::span<const WeightRows> parts) const;
  void pack_panels(PackedWeight& w, std::span<const WeightRows> parts) const;

  const GemmKernels& kernels_;
  int threads_;
  Buffer scratch_;                      ///< [threads, kGemmScratchFloats]
  std::optional<OnednnMatmul> onednn_;  ///< with AVX512-BF16 and up
};

}  // namespace nanovllm::cpu
