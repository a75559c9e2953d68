#pragma once

#include <cublasLt.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "nanovllm/base/tensor.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda/device/runtime.h"

namespace nanovllm::cuda {

/// A weight in the device's memory: rows in a row, the model's dtype.
struct DeviceWeight : Weight {
  Buffer memory;
  Tensor matrix;  ///< [n, k]
};
inline const DeviceWeight& device_weight(const Weight& w) {
  return static_cast<const DeviceWeight&>(w);
}

/// cuBLASLt's functions, opened at run time: the library may be missing where no GPU is used.
struct CublasLt;

/// Products out [T, n] = x [T, k] w [n, k]^T through cuBLASLt. Its algorithm for a shape is chosen
/// by measurement, when the shape first comes outside a capture, and kept; nearby T share one,
/// which is measured anew when the largest of them comes. Many tokens are computed in pieces where
/// that measures faster.
class CublasLtGemm {
 public:
  /// `wait` waits for an event of the stream; it may throw. Throws UserError that names the package
  /// where the library is missing.
  CublasLtGemm(Launch where, std::function<void(cudaEvent_t)> wait);
  ~CublasLtGemm();

  /// With `scratch`, of out's shape, the product is added to out.
  void run(Tensor out, Tensor x, const DeviceWeight& w, bool capturing, Tensor scratch = {});

  /// The way, from 0, that does fastest what can be done in several, `choice` (from 0), for a
  /// product of this shape: measured as algorithms are (0 before that in a capture), and kept.
  /// run(way) may be called any number of times.
  int fastest(int choice, Tensor out, Tensor x, Tensor w, int num_ways, bool capturing,
              const std::function<void(int)>& run);

 private:
  struct Plan;
  struct Problem;
  /// A product's shape and types: the largest T that shares the choice, n, k, x's dtype, out's.
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, DType>;
  static Key key(Tensor out, Tensor x, Tensor w);
  struct Way {
    int way = 0;
    int64_t num_tokens = 0;  ///< that it was measured with
  };
  static constexpr int kPieces = -1;  // a choice
  /// `to`: where measured products go.
  Plan choose(const Problem& problem, bool measure, void* to);
  /// Which of the ways to compute a product of so many tokens takes the least time.
  int race(int num_ways, int64_t num_tokens, const std::function<void(int)>& run);
  /// Milliseconds that `num_runs` runs take, each with cold weights and between other kernels.
  double timed(int num_runs, const std::function<void()>& enqueue);
  void run_whole(Tensor out, Tensor x, const DeviceWeight& w, bool capturing, Tensor scratch);

  Launch where_;
  std::function<void(cudaEvent_t)> wait_;
  std::unique_ptr<CublasLt> lib_;
  cublasLtHandle_t handle_ = nullptr;
  void *workspace_ = nullptr, *flush_ = nullptr;
  std::array<cudaEvent_t, 2> events_ = {};
  std::map<Key, Plan> plans_;
  std::map<std::pair<int, Key>, Way> ways_;
};

}  // namespace nanovllm::cuda
