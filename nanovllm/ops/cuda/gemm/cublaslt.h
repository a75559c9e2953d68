#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/device/runtime.h"
#include "nanovllm/ops/cuda/gemm/autotuner.h"

namespace nanovllm::cuda {

/// cuBLASLt's functions, opened at run time: the library may be missing where no GPU is used.
struct CublasLtLibrary;

/// GEMMs out [T, n] = x [T, k] w [n, k]^T by cuBLASLt, with the algorithm that autotuning finds
/// fastest. Many tokens are computed in pieces (kPieceTokens) if that is faster.
class CublasLt {
 public:
  /// Throws UserError that names the package if the library is missing.
  CublasLt(Launch where, Autotuner& autotuner);
  ~CublasLt();

  /// out = x w^T, or out += x w^T if there is a `scratch` of out's shape, to which runs that are
  /// only measured write.
  void run(Tensor out, Tensor x, Tensor w, Tensor scratch = {});

 private:
  struct Plan;
  struct Problem;
  static constexpr int kAlgorithm = -2, kPieces = -1;  // operations of the autotuner's keys
  Plan choose(const Problem& problem, bool measure, void* to);
  void run_whole(Tensor out, Tensor x, Tensor w, Tensor scratch);

  Launch where_;
  Autotuner& autotuner_;
  std::unique_ptr<CublasLtLibrary> lib_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Autotuner::Key, Plan> plans_;
};

}  // namespace nanovllm::cuda
