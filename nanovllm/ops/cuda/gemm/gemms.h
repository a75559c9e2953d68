#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/gemm/autotuner.h"
#include "nanovllm/ops/cuda/gemm/cublaslt.h"
#include "nanovllm/ops/cuda/gemm/swap_ab_gemm.h"
#include "nanovllm/ops/cuda/gemm/tile_gemm.h"
#include "nanovllm/ops/cuda_library.h"

// The first file to read of this folder: every GEMM of the backend, and how its kernel is chosen.
//   small_gemm     up to 16 tokens, bound by latency; norm, SwiGLU, bias and residual are fused
//   swap_ab_gemm   17 to 64 tokens on Hopper, where a rule says that it wins
//   tile_gemm      any number of tokens on Hopper, in the tile configuration that measures fastest
//   cublaslt       whatever is left, or measures faster, with row operations in kernels of their
//   own
// docs/kernels.md tells why each of them is there and what was tried.
namespace nanovllm::cuda {

/// A weight in the device's memory: [n, k], dense, in the model's dtype.
struct DeviceWeight : Weight {
  Buffer memory;
  Tensor matrix;
};
inline Tensor matrix_of(const Weight& w) { return static_cast<const DeviceWeight&>(w).matrix; }

/// The GEMMs of one backend. Everything is enqueued on one stream.
class Gemms {
 public:
  /// `allocate` gives zeroed memory of the device, `wait` waits for an event of the stream.
  Gemms(Launch where, const CudaKernels& kernels, int device,
        const std::function<Buffer(size_t)>& allocate, std::function<void(cudaEvent_t)> wait);

  /// out = x w^T + bias; out may be float32.
  void store(Tensor out, Tensor x, const Weight& w, Tensor bias = {});
  /// out += x w^T; scratch is of out's shape.
  void add(Tensor out, Tensor x, const Weight& w, Tensor scratch);
  /// The same for a whole residual, whose next norm may be begun.
  void add(Residual& residual, Tensor x, const Weight& w, const Norm& next);
  /// out = silu(x g^T) * x u^T, w holding g, then u; gate_up [T, 2 n] is scratch.
  void swiglu(Tensor out, Tensor x, const Weight& w, Tensor gate_up);
  /// store() and swiglu() of the norm of a whole residual.
  void norm_store(Tensor out, Residual& residual, const Norm& norm, const Weight& w, Tensor bias);
  void norm_swiglu(Tensor out, Residual& residual, const Norm& norm, const Weight& w,
                   Tensor gate_up);
  /// norm_store() into rope.qkv, then rope_and_store, in one kernel; false, and nothing is done,
  /// where there is none.
  bool norm_rope(Residual& residual, const QkvArgs& qkv, const RopeStoreArgs& rope,
                 const KvCache& kv, const Batch& batch);

 private:
  /// A GEMM with the row operations around it.
  struct Call {
    Epilogue epilogue;
    Tensor out, x, w;
    Tensor bias = {};  // with kStore
    Tensor scratch =
        {};  // of out's shape with kAdd, where measured results go; gate_up with kSwiglu
    // x is the sum of this residual, and is to be normed; with kAdd, out is.
    Residual* residual = nullptr;
    Norm norm = {};
    Norm next = {};  // with kAdd: of the residual
  };
  static GemmArgs args_of(const Call& call);
  /// Whether the stream is being captured: nothing can be measured then.
  bool is_capturing() const;
  void run(const Call& call);
  /// Makes args.x the normed x, if a norm is asked for. Gives what of a deferred norm is left to
  /// the GEMM, or what it has to begin.
  DeferredNorm take_norm(const Call& call, bool is_swap_ab, GemmArgs& args);
  /// By cuBLASLt and separate row operations, x being normed.
  void run_cublaslt(const Call& call, Tensor out, Tensor x);

  Launch where_;
  CudaKernels kernels_;
  bool is_native_;  // on Hopper, and not asked for the portable kernels
  Autotuner autotuner_;
  CublasLt cublaslt_;
  std::optional<WaitingGrids> waiting_grids_;  // of native kernels
  std::array<Buffer, 2> tile_memory_;          // TileScratch's
  Buffer norm_squares_;
  // The norm begun last: Residual::begun_norm names it.
  DeferredNorm begun_;
  uint64_t num_begun_ = 0;
};

}  // namespace nanovllm::cuda
