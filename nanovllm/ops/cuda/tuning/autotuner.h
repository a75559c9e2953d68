#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

/// How a GEMM is computed.
struct GemmChoice {
  static constexpr int32_t kCublasLt = -1, kSwapAb = -2;
  int32_t kernel = kCublasLt;  ///< kCublasLt, kSwapAb or a tile configuration (tile_gemm.h)
  bool in_pieces = false;      ///< cuBLASLt computes kPieceTokens tokens at a time
  std::array<uint64_t, 8> algorithm = {};  ///< a cublasLtMatmulAlgo_t
};

/// Chooses how each GEMM is computed, and remembers that. The candidates come in the order of a
/// cost model. While an engine starts (Backend::prepare()), they are measured; a GEMM that was not
/// measured then uses the first one, so no request ever waits for a measurement. Similar numbers of
/// tokens share a choice (shape_bucket.h). The choices can be written as text, for the other ranks
/// and for later processes (choice_file.h).
class Autotuner {
 public:
  /// `wait` waits for an event of the stream; it may throw.
  Autotuner(Launch where, std::function<void(cudaEvent_t)> wait);
  ~Autotuner();
  Autotuner(const Autotuner&) = delete;

  /// An operation, and a GEMM out [T, n] = x [T, k] w [n, k]^T.
  using Key = std::tuple<int /*operation*/, int64_t /*bucket of T*/, int64_t /*n*/, int64_t /*k*/,
                         int /*DType of x*/, int /*DType of out*/>;
  static Key key(int operation, Tensor out, Tensor x, Tensor w);

  /// From now on, measures the GEMMs of exactly this many tokens whose choice was not measured yet;
  /// 0: none. If there is no memory to measure with, nothing is measured.
  void measure_only(int64_t num_tokens);
  /// The choice for a GEMM of `num_tokens` tokens. candidates() is called if it is not known; it
  /// returns at least one. run(candidate) enqueues the GEMM and may be called many times.
  GemmChoice choose(const Key& key, int64_t num_tokens,
                    const std::function<std::vector<GemmChoice>()>& candidates,
                    const std::function<void(const GemmChoice&)>& run);

  /// The choices that were measured, one in each line.
  std::string to_text() const;
  /// Adds the choices of such a text whose GEMMs were not measured here. Throws UserError if it is
  /// no such text; then nothing is added.
  void add_text(const std::string& text);
  void forget() { choices_.clear(); }
  int64_t num_measured() const;

 private:
  struct Known {
    GemmChoice choice;
    bool is_measured = false;
  };
  GemmChoice measure(const std::vector<GemmChoice>& candidates, int64_t num_tokens,
                     const std::function<void(const GemmChoice&)>& run);
  /// The milliseconds that a run takes with cold weights and between other kernels, as in a step.
  double time_of(const std::function<void()>& enqueue);

  Launch where_;
  std::function<void(cudaEvent_t)> wait_;
  int64_t measured_tokens_ = 0;
  void* flush_ = nullptr;  // only while something is measured
  std::array<cudaEvent_t, 2> events_ = {};
  std::map<Key, Known> choices_;
};

}  // namespace nanovllm::cuda
