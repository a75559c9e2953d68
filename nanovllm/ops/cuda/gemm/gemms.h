#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/gemm/cublaslt.h"
#include "nanovllm/ops/cuda/gemm/hopper/swap_ab_gemm.h"
#include "nanovllm/ops/cuda/gemm/hopper/tile_gemm.h"
#include "nanovllm/ops/cuda/gemm/quantized/quantized_gemm.h"
#include "nanovllm/ops/cuda/tuning/autotuner.h"
#include "nanovllm/ops/cuda_library.h"

// The first file to read of this folder: every GEMM of the backend, and how its kernel is chosen.
//   small_gemm     up to 16 tokens, on Hopper mostly up to 8; norm, SwiGLU, bias and residual are
//                  fused
//   swap_ab_gemm   from there to 64 tokens on Hopper, for nearly every shape; norm and rotation are
//                  fused
//   tile_gemm      any number of tokens on Hopper, in one of many tile configurations
//   cublaslt       any GEMM; row operations are separate kernels
//   quantized/     quantized weights: how each of the others computes with them
// Where both tile_gemm and cublaslt compute a GEMM, autotuning chooses (tuning/autotuner.h).
// docs/kernels.md says why each of them is needed and what else was tried.
namespace nanovllm::cuda {

/// A weight in the device's memory: [n, k], dense, in the model's dtype; or quantized, and then
/// `matrix` has no memory.
struct DeviceWeight : Weight {
  Buffer memory, scales;
  Tensor matrix;
  std::optional<QuantizedWeight> quantized;
};

/// The x of a GEMM: a tensor, or the norm of a residual without unfinished additions.
struct GemmInput {
  GemmInput(Tensor x_) : x(x_) {}  // NOLINT(google-explicit-constructor): it is the same thing
  GemmInput(Residual& residual_, const Norm& norm_)
      : x(residual_.whole()), residual(&residual_), norm(norm_) {}

  /// `count` tokens from `first` on, of an input without a norm.
  GemmInput rows(int64_t first, int64_t count) const {
    if (count == x.shape[0]) return *this;
    return x.rows(first, count);
  }

  Tensor x;  // [T, k], not normed yet
  Residual* residual = nullptr;
  Norm norm = {};
  std::optional<QuantizedActivations> quantized = {};  // x, if there is that form of it too
};

/// The GEMMs of one backend. Everything is enqueued on one stream.
class Gemms {
 public:
  /// `allocate` gives zeroed memory of the device, `wait` waits for an event of the stream.
  Gemms(Launch where, const CudaKernels& kernels, int device,
        const std::function<Buffer(size_t)>& allocate, std::function<void(cudaEvent_t)> wait);

  /// out = x w^T + bias; out may be float32.
  void store(Tensor out, const GemmInput& x, const Weight& w, Tensor bias = {});
  /// out = silu(x g^T) * x u^T, where w is g, then u; gate_up [T, 2 n] is scratch.
  void swiglu(Tensor out, const GemmInput& x, const Weight& w, Tensor gate_up);
  /// out += x w^T; scratch is of out's shape.
  void add(Tensor out, const GemmInput& x, const Weight& w, Tensor scratch);
  /// residual += x w^T, for a residual without unfinished additions. May begin the norm `next`.
  void add(Residual& residual, const GemmInput& x, const Weight& w, const Norm& next);
  /// Sends x w^T, plus out if `adds`, to `peers` and returns true. If the kernel that computes it
  /// cannot send, it writes the result to out, and this returns false.
  bool send(const Peers& peers, Tensor out, const GemmInput& x, const Weight& w, Tensor scratch,
            bool adds);
  /// store() into rope.qkv, then rope_and_store(). If one kernel computes both, k and v are only
  /// written to the cache.
  void store_rotated(const GemmInput& x, const Weight& w, Tensor bias, const RopeStoreArgs& rope,
                     const KvCache& kv, const Step& step);

  /// Where the kernel that computes x has to write it quantized too, if the GEMM of x and w needs
  /// it quantized in chunks. GemmInput::quantized then says that it did.
  std::optional<QuantizedActivations> quantized_input(const Tensor& x, const Weight& w);

  /// Memory that GEMMs of a quantized weight need, before graphs with these are captured.
  void reserve(const QuantizedWeight& w, DType dtype);
  /// A weight [n, k] in `dtype`. If it is quantized, the matrix is only valid for what is enqueued
  /// before the next call.
  Tensor matrix_of(const Weight& w, DType dtype);

  Autotuner& autotuner() { return autotuner_; }
  const Autotuner& autotuner() const { return autotuner_; }
  /// Whether split-K may be used.
  bool may_split_k() const { return waiting_grids_ && waiting_grids_->allowed(); }
  uint64_t cublaslt_version() const { return cublaslt_.version(); }

 private:
  /// A GEMM with the row operations before and after it.
  struct Call {
    Epilogue epilogue;
    Tensor out;
    GemmInput in;
    Tensor w = {};
    const QuantizedWeight* quantized = nullptr;  // instead of w
    bool w_is_new = false;                       // the kernel before this GEMM writes w
    Tensor bias = {};                            // with kStore
    // With kAdd it has out's shape, and runs that are only measured write to it. With kSwiglu it is
    // gate_up.
    Tensor scratch = {};
    Residual* residual = nullptr;  // with kAdd: what out belongs to, if `next` is known
    Norm next = {};                // with kAdd: the norm of the sum
    const Peers* peers = nullptr;  // only if prefers_small()
  };
  static GemmArgs args_of(const Call& call);
  /// Sets the fields of a call that depend on the weight.
  static Call with_weight(Call call, const Weight& w);
  void run(const Call& call);
  /// Whether the kernels for few tokens, or swap_ab_gemm(), compute this GEMM. Rules decide it, not
  /// measurements.
  bool prefers_small(const Call& call, const GemmArgs& args) const;
  bool prefers_swap_ab(const Call& call, const GemmArgs& args) const;
  // gemms_quantized.cpp
  /// Returns false without doing anything if run() has to choose among Hopper's kernels.
  bool run_quantized(const Call& call);
  void run_quantized_small(const Call& call);
  /// Dequantizes w into scratch memory just before the GEMM.
  void run_dequantized(Call call, Tensor out);
  /// swap_ab_gemm() with the norm before it, and with the quantization of x if w needs it.
  void run_swap_ab(const Call& call, GemmArgs args);
  /// Quantizes x and multiplies E4M3. Returns false without doing anything if no kernel can.
  bool run_e4m3(Call call);
  /// Quantizes x and multiplies E4M3 as `choice` says, or as CublasLt::run() corrects it.
  void run_e4m3_as(GemmChoice& choice, Call call);
  std::vector<GemmChoice> e4m3_candidates(const Call& call, const GemmArgs& args);
  /// Whether tile_gemm() multiplies E4M3 by E4M3 with these scales.
  bool has_e4m3_tiles(const Call& call) const;
  /// x, quantized, and w as cuBLASLt reads them.
  struct E4M3Matrices {
    Tensor x, w;
    E4M3Scales scales;
  };
  E4M3Matrices e4m3_matrices(const Call& call);
  std::vector<GemmChoice> quantized_candidates(const Call& call);
  /// Quantizes x, or its norm, unless that was done when x was computed.
  void quantize(const QuantizedActivations& to, const GemmInput& x);
  /// Memory for num_tokens rows of quantized activations.
  QuantizedActivations e4m3_activations(const QuantizedWeight& w, int64_t num_tokens,
                                        int64_t scale_stride);
  Tensor dequantized(const QuantizedWeight& w, DType dtype);
  /// The kernels, as far as they differ in what they can do for a DeferredNorm.
  enum class NormKernel : uint8_t { kQuantizedSmall, kSwapAb, kTile, kCublasLt };
  /// Returns the DeferredNorm that the GEMM has to begin (with kAdd) or to finish. If there is a
  /// norm of x that was not begun, or that the kernel cannot finish, this enqueues it. Sets args.x
  /// to the normed x.
  DeferredNorm apply_norm(const Call& call, NormKernel kernel, GemmArgs& args);
  /// Computes the GEMM as `choice` says, or as CublasLt::run() corrects it; `out` may replace
  /// call.out.
  void run_as(GemmChoice& choice, const Call& call, Tensor out);
  std::vector<GemmChoice> candidates(const Call& call);
  /// The first tile configurations of the cost model, with their costs.
  std::vector<std::pair<double, int>> best_tiles(const GemmArgs& args, DType dtype) const;
  /// How to launch a kernel that reads w before the previous kernel has ended, if that is allowed.
  Launch launch_of(const Call& call) const;
  TileScratch tile_scratch() const {
    return {tile_memory_[0].get(), static_cast<uint32_t*>(tile_memory_[1].get())};
  }
  /// Whether tile_gemm() computes the GEMM in this configuration here.
  bool may_use(int config, const GemmArgs& args, DType dtype) const;

  Launch where_;
  CudaKernels kernels_;
  bool is_native_;  // the kernels for Hopper may be used
  Autotuner autotuner_;
  CublasLt cublaslt_;
  std::optional<WaitingGrids> waiting_grids_;  // only if is_native_
  std::array<Buffer, 2> tile_memory_;          // parts and counters of TileScratch
  Buffer norm_squares_;
  std::function<Buffer(size_t)> allocate_;
  Buffer dequantized_;
  size_t dequantized_bytes_ = 0;
  // Memory for quantized activations, and for their scales. The two do not share memory, so that
  // whatever an earlier GEMM left in it is a valid number: the padded rows of a graph are computed,
  // although nothing uses them.
  struct Growing {
    std::vector<Buffer> all;  // the last one is used; graphs may use the others
    size_t bytes = 0;
  };
  Growing e4m3_values_, e4m3_scales_;
};

}  // namespace nanovllm::cuda
