#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda_library.h"

namespace nanovllm {

/// Every GPU also runs the portable kernels, with the shared memory that all GPUs have.
enum class Kernels { kNative, kPortable };

/// Runs the same operation on the GPU and on the CPU, with the same random inputs.
class TwoBackends : public ::testing::TestWithParam<Kernels> {
 protected:
  void SetUp() override {
    if (!has_cuda_driver()) GTEST_SKIP() << "no NVIDIA driver here";
    gpu = make_cuda_backend({.portable = GetParam() == Kernels::kPortable});
    cpu = make_cpu_backend(0);
  }

  /// The same tensor on the CPU backend, whose memory is `host`, and on the GPU, whose memory is
  /// `device`.
  struct Twin {
    std::vector<char> host;
    Buffer device;
    Tensor on_cpu, on_gpu;
  };
  /// A twin with the dtype and shape of `t`. Its values are normally distributed with the standard
  /// deviation `scale`; if that is 0, they are NaN.
  Twin make(Tensor t, float scale = 1) {
    Twin twin;
    twin.host.resize(t.bytes(), static_cast<char>(0xff));
    std::normal_distribution<float> normal(0, scale);
    if (scale > 0)
      for (int64_t i = 0; i < t.size(); ++i) set(twin.host.data(), t.dtype, i, normal(random));
    return place(std::move(twin), t);
  }
  Twin make(const std::vector<int32_t>& values) {
    Twin twin;
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    twin.host.assign(bytes, bytes + values.size() * sizeof(int32_t));
    return place(std::move(twin), {nullptr, DType::kI32, static_cast<int64_t>(values.size())});
  }
  /// Replaces each element x with change_one(its index, x).
  template <class ChangeOne>
  void change(Twin& twin, ChangeOne change_one) {
    const Tensor& t = twin.on_cpu;
    for (int64_t i = 0; i < t.size(); ++i)
      set(twin.host.data(), t.dtype, i,
          static_cast<float>(change_one(i, get(twin.host.data(), t.dtype, i))));
    gpu->upload(twin.on_gpu.data, twin.host.data(), twin.host.size());
  }
  /// Whether to leave a shape out: under a slow tool, only one in NANOVLLM_TEST_ONE_IN is tested.
  bool skips() {
    static const char* const one_in = std::getenv("NANOVLLM_TEST_ONE_IN");
    return one_in != nullptr && num_shapes_++ % std::max(std::atoi(one_in), 1) != 0;
  }
  /// The present contents of a tensor on the GPU.
  std::vector<char> from_gpu(const Tensor& t) {
    std::vector<char> bytes(t.bytes());
    gpu->download(bytes.data(), t.data, bytes.size());
    return bytes;
  }
  /// Compares the GPU's values with the CPU's. The norm of the difference may be `share` of the
  /// norm of the values (0: a default for the dtype), and the largest difference 4 times `share` of
  /// the largest value.
  void expect_equal(const Twin& twin, const std::string& what, double share = 0) {
    const Tensor& t = twin.on_cpu;
    if (share == 0) share = t.dtype == DType::kF32 ? 2e-5 : t.dtype == DType::kF16 ? 2e-3 : 1e-2;
    const std::vector<char> bytes = from_gpu(twin.on_gpu);
    double difference = 0, size = 0, largest = 0, worst = 0;
    int64_t not_on_gpu = 0, not_on_cpu = 0;  // values that are finite only on the other side
    for (int64_t i = 0; i < t.size(); ++i) {
      const double a = get(bytes.data(), t.dtype, i), b = get(t.as<char>(), t.dtype, i);
      if (!std::isfinite(a) || !std::isfinite(b)) {
        not_on_gpu += std::isfinite(b);
        not_on_cpu += std::isfinite(a);
        continue;
      }
      difference += (a - b) * (a - b);
      size += b * b;
      largest = std::max(largest, std::abs(b));
      worst = std::max(worst, std::abs(a - b));
    }
    EXPECT_EQ(not_on_gpu, 0) << what;
    EXPECT_EQ(not_on_cpu, 0) << what;
    EXPECT_LE(std::sqrt(difference), share * std::sqrt(size) + 1e-30) << what;
    EXPECT_LE(worst, 4 * share * largest + 1e-30) << what;
  }

  static float get(const char* p, DType dtype, int64_t i) {
    if (dtype == DType::kF32) return reinterpret_cast<const float*>(p)[i];
    const uint16_t x = reinterpret_cast<const uint16_t*>(p)[i];
    return dtype == DType::kBF16 ? bf16_to_f32(x) : f16_to_f32(x);
  }
  static void set(char* p, DType dtype, int64_t i, float x) {
    if (dtype == DType::kF32) reinterpret_cast<float*>(p)[i] = x;
    else reinterpret_cast<uint16_t*>(p)[i] = dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
  }

  std::unique_ptr<Backend> gpu, cpu;
  std::mt19937 random{1};

 private:
  Twin place(Twin twin, Tensor t) {
    twin.device = gpu->allocate(twin.host.size());
    gpu->upload(twin.device.get(), twin.host.data(), twin.host.size());
    twin.on_cpu = twin.on_gpu = t;
    twin.on_cpu.data = twin.host.data();
    twin.on_gpu.data = twin.device.get();
    return twin;
  }
  int num_shapes_ = 0;
};

inline std::string kernels_name(const ::testing::TestParamInfo<Kernels>& info) {
  return info.param == Kernels::kNative ? "Native" : "Portable";
}
#define NANOVLLM_BOTH_KERNELS(suite)                                                            \
  INSTANTIATE_TEST_SUITE_P(Gpu, suite, ::testing::Values(Kernels::kNative, Kernels::kPortable), \
                           kernels_name)

}  // namespace nanovllm
