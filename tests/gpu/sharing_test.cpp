// What an engine shares with others in its process: the caller's CUDA context, and the GPU.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cuda_library.h"

namespace nanovllm {
namespace {

/// The driver's functions that a caller of the library might use.
class Driver {
 public:
  using Context = void*;
  Driver() { check(call<int(unsigned)>("cuInit")(0)); }
  Context make_context(int device) const {
    Context context = nullptr;
    check(call<int(Context*, unsigned, int)>("cuCtxCreate_v2")(&context, 0, device));
    check(call<int(Context*)>("cuCtxPopCurrent_v2")(&context));
    return context;
  }
  Context current() const {
    Context context = nullptr;
    check(call<int(Context*)>("cuCtxGetCurrent")(&context));
    return context;
  }
  void set_current(Context context) const { check(call<int(Context)>("cuCtxSetCurrent")(context)); }
  void destroy(Context context) const { check(call<int(Context)>("cuCtxDestroy_v2")(context)); }

 private:
  template <class F>
  F* call(const char* name) const {
    return reinterpret_cast<F*>(dlsym(library_, name));
  }
  static void check(int result) { ASSERT_EQ(result, 0); }
  void* library_ = dlopen("libcuda.so.1", RTLD_NOW);
};

/// The GEMM of x [T, k] and w [n, k], all of whose elements are 1.
class GemmOfOnes {
 public:
  GemmOfOnes(Backend& backend, int64_t num_tokens, int64_t n, int64_t k) : backend_(backend) {
    std::vector<uint16_t> ones(static_cast<size_t>(std::max(n, num_tokens) * k), f32_to_bf16(1));
    w_ = backend.pack(Tensor(ones.data(), DType::kBF16, n, k), DType::kBF16);
    x_ = place(num_tokens, k);
    out_ = place(num_tokens, n);
    backend.upload(x_.data, ones.data(), x_.bytes());
  }
  void run() { backend_.matmul(out_, x_, *w_); }
  bool is_right() {
    std::vector<uint16_t> out(static_cast<size_t>(out_.size()));
    backend_.download(out.data(), out_.data, out_.bytes());
    const uint16_t expected = f32_to_bf16(static_cast<float>(x_.shape[1]));
    return std::all_of(out.begin(), out.end(), [=](uint16_t y) { return y == expected; });
  }

 private:
  Tensor place(int64_t rows, int64_t columns) {
    Tensor t(nullptr, DType::kBF16, rows, columns);
    memory_.push_back(backend_.allocate(t.bytes()));
    t.data = memory_.back().get();
    return t;
  }
  Backend& backend_;
  std::vector<Buffer> memory_;
  WeightPtr w_;
  Tensor x_, out_;
};

TEST(GpuSharing, TheCallersContextStaysAndDoesNotMatter) {
  if (!has_cuda_driver()) GTEST_SKIP() << "no NVIDIA driver here";
  const Driver driver;
  const Driver::Context own = driver.make_context(0);
  driver.set_current(own);
  const auto expect_own = [&](const char* after) { EXPECT_EQ(driver.current(), own) << after; };
  {
    const auto backend = make_cuda_backend();
    expect_own("the constructor");
    for (const int64_t num_tokens : {1, 40, 300}) {
      GemmOfOnes gemm(*backend, num_tokens, 256, 1024);
      gemm.run();
      EXPECT_TRUE(gemm.is_right()) << num_tokens;
      expect_own("a GEMM");
    }
    (void)backend->memory();
    expect_own("memory()");
  }
  expect_own("the destructor");
  // It may also change from call to call.
  const auto backend = make_cuda_backend();
  const Driver::Context other = driver.make_context(0);
  for (const Driver::Context context : {own, other, own}) {
    driver.set_current(context);
    GemmOfOnes gemm(*backend, 300, 256, 1024);
    gemm.run();
    EXPECT_TRUE(gemm.is_right());
    EXPECT_EQ(driver.current(), context);
  }
  driver.set_current(nullptr);
  driver.destroy(other);
  driver.destroy(own);
}

// Thread blocks of a split-K GEMM wait for each other. Two engines must not each occupy some of the
// multiprocessors and wait for the rest.
TEST(GpuSharing, TwoEnginesOfAProcessUseAGpuAtOnce) {
  if (!has_cuda_driver()) GTEST_SKIP() << "no NVIDIA driver here";
  if (std::getenv("NANOVLLM_TEST_ONE_IN") != nullptr) GTEST_SKIP() << "too slow under a tool";
  std::vector<std::jthread> engines;
  std::array<bool, 2> right = {};
  for (bool& is_right : right)
    engines.emplace_back([&] {
      const auto backend = make_cuda_backend();
      GemmOfOnes gemm(*backend, 96, 4096, 12288);  // few tiles and a long k: mostly split-K
      for (int i = 0; i < 5000; ++i) gemm.run();
      is_right = gemm.is_right();
    });
  engines.clear();
  EXPECT_TRUE(right[0]);
  EXPECT_TRUE(right[1]);
}

}  // namespace
}  // namespace nanovllm
