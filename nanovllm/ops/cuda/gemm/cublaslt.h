#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/tuning/gemm_choices.h"

namespace nanovllm::cuda {

/// cuBLASLt's functions, opened at run time, since the library may be missing where no GPU is used.
struct CublasLtLibrary;

/// The scales of x and w in E4M3, as cuBLASLt reads them.
struct E4M3Scales {
  enum Kind {
    kRows,    ///< [n]: one for each row
    kChunks,  ///< [chunks, n]: one for each 128 columns of a row
    kBlocks,  ///< [blocks of 128 rows, chunks rounded up to a multiple of 4]
  };
  const float *x = nullptr, *w = nullptr;
  Kind x_kind = kRows, w_kind = kRows;
};

/// GEMMs out [T, n] = x [T, k] w [n, k]^T by cuBLASLt.
class CublasLt {
 public:
  /// Throws UserError that names the package if the library is missing.
  explicit CublasLt(Launch where);
  ~CublasLt();

  /// The most promising choices, as cuBLASLt's heuristic orders its algorithms. With many tokens,
  /// computing kPieceTokens at a time is a choice too.
  std::vector<GemmChoice> candidates(Tensor out, Tensor x, Tensor w);
  /// The most promising choices if x and w are E4M3; none if the GPU or the library has no
  /// algorithm for that. T and n are multiples of 4.
  std::vector<GemmChoice> candidates(Tensor out, Tensor x, Tensor w, const E4M3Scales& scales);
  /// out = x w^T, or out += x w^T if `adds`. If the algorithm does not support these tensors, for
  /// example because it was chosen for another T, cuBLASLt's heuristic replaces it in `choice`.
  void run(GemmChoice& choice, Tensor out, Tensor x, Tensor w, bool adds);
  void run(GemmChoice& choice, Tensor out, Tensor x, Tensor w, const E4M3Scales& scales, bool adds);
  /// The library's version.
  uint64_t version() const;

 private:
  struct Problem;
  std::vector<GemmChoice> heuristic(const Problem& problem, int count);
  void run_whole(GemmChoice& choice, const Problem& problem, bool adds);

  Launch where_;
  std::unique_ptr<CublasLtLibrary> lib_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
};

}  // namespace nanovllm::cuda
