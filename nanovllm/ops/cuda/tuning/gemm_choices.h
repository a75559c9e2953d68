#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "nanovllm/base/tensor.h"

namespace nanovllm::cuda {

/// How a GEMM is computed.
struct GemmChoice {
  static constexpr int32_t kCublasLt = -1, kDequantized = -2, kSwapAb = -3;
  /// kCublasLt, kSwapAb, a tile configuration (tile_gemm.h), or kDequantized, which computes with a
  /// dequantized copy of the weight.
  int32_t kernel = kCublasLt;
  bool in_pieces = false;                  ///< cuBLASLt computes kPieceTokens tokens at a time
  std::array<uint64_t, 8> algorithm = {};  ///< a cublasLtMatmulAlgo_t

  bool operator==(const GemmChoice&) const = default;
};

/// The choices for the GEMMs that have occurred. Similar numbers of tokens share a choice
/// (shape_bucket.h). Measured choices can be written as text, for the other ranks and for later
/// processes (choice_file.h).
class GemmChoices {
 public:
  /// An operation, and a GEMM out [T, n] = x [T, k] w [n, k]^T.
  using Key = std::tuple<int /*operation*/, int64_t /*bucket of T*/, int64_t /*n*/, int64_t /*k*/,
                         int /*DType of x*/, int /*DType of out*/>;
  static Key key(int operation, Tensor out, Tensor x, Tensor w);

  struct Known {
    GemmChoice choice;
    int64_t num_tokens = 0;  ///< T of the measurement; 0: there was none
  };
  /// Null if nothing is known.
  const Known* find(const Key& key) const;
  void set(const Key& key, const Known& known) {
    all_[key] = known;
    ++num_set_;
  }
  /// How often set() was called.
  int64_t num_set() const { return num_set_; }

  /// The choices that were measured, one in each line.
  std::string to_text() const;
  /// Adds the choices of a text of to_text() that were measured with more tokens than those here.
  /// Throws UserError if it is not such a text; then nothing is added.
  void add_text(const std::string& text);
  void forget_measured();  ///< keeps the choices that were made without a measurement
  int64_t num_measured() const;

 private:
  std::map<Key, Known> all_;
  int64_t num_set_ = 0;
};

}  // namespace nanovllm::cuda
