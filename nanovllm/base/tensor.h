#pragma once

#include <array>
#include <cstdint>

#include "nanovllm/base/dtype.h"

namespace nanovllm {

/// A typed view of memory that it does not own, row-major, with at most three dimensions. Only the
/// outermost rows may have gaps between them. The memory may belong to a device, and then only its
/// backend may access it.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, 2> shape{};
  int64_t row_stride = 0;  ///< elements from one outermost row to the next

  Tensor() = default;
  Tensor(void* d, DType t, int64_t n) : data(d), dtype(t), rank(1), shape{n, 1}, row_stride(1) {}
  Tensor(void* d, DType t, int64_t n, int64_t k)
      : data(d), dtype(t), rank(2), shape{n, k}, row_stride(k) {}

  int64_t size() const { return rank == 0 ? 0 : shape[0] * shape[1]; }
  size_t bytes() const { return static_cast<size_t>(size()) * dtype_size(dtype); }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  /// Rows [first, first + count) of the outermost dimension.
  Tensor rows(int64_t first, int64_t count) const {
    Tensor t = *this;
    t.data =
        static_cast<char*>(data) + first * row_stride * static_cast<int64_t>(dtype_size(dtype));
    t.shape[0] = count;
    return t;
  }
  explicit operator bool() const { return data != nullptr; }
};

}  // namespace nanovllm
