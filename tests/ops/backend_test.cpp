#include "nanovllm/ops/backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <thread>

#include "nanovllm/base/error.h"
#include "nanovllm/ops/cpu/cpu_backend.h"
#include "tests/ops/matrix.h"

namespace nanovllm::cpu {
namespace {

TEST(CpuBackend, MemoryIsZeroedAndAligned) {
  const auto backend = make_cpu_backend(1);
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, size_t{9} << 20}) {
    const Buffer buffer = backend->allocate(bytes);
    ASSERT_NE(buffer, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.get()) % 64, 0u);
    const char* p = static_cast<const char*>(buffer.get());
    EXPECT_TRUE(std::all_of(p, p + bytes, [](char c) { return c == 0; }));
  }
}

TEST(CpuBackend, FailedAllocationIsAUserErrorWithItsSize) {
  const auto backend = make_cpu_backend(1);
  try {
    backend->allocate(size_t{1} << 60);
    FAIL() << "2^60 bytes were given";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("1152921504606846976"), std::string::npos) << e.what();
  }
}

TEST(CpuBackend, UploadAndDownloadCopy) {
  const auto backend = make_cpu_backend(1);
  const Buffer device = backend->allocate(16);
  const int32_t in[4] = {1, -2, 3, -4};
  int32_t out[4] = {};
  backend->upload(device.get(), in, sizeof in);
  backend->download(out, device.get(), sizeof out);
  EXPECT_TRUE(std::equal(in, in + 4, out));
}

TEST(CpuBackend, DescribesItselfInOneLine) {
  const std::string line = make_cpu_backend(1)->describe();
  EXPECT_NE(line.find("CPU"), std::string::npos);
  EXPECT_NE(line.find(isa_name(best_isa())), std::string::npos);
  EXPECT_NE(line.find("1 thread"), std::string::npos);
  EXPECT_EQ(line.find('\n'), std::string::npos);
}

TEST(CpuBackend, OneWeightServesAsTableAndAsMatrix) {
  const auto backend = make_cpu_backend(2);
  const Matrix w = random_matrix(DType::kBF16, 100, 64, 1);
  const WeightPtr tied = backend->pack(w.tensor, DType::kBF16);
  std::vector<int32_t> ids = {99, 0, 50};
  Matrix x(DType::kBF16, 3, 64), logits(DType::kF32, 3, 100);
  backend->embed(x.tensor, *tied, Tensor(ids.data(), DType::kI32, 3));
  backend->matmul(logits.tensor, x.tensor, *tied);
  for (int64_t r = 0; r < 3; ++r) {
    // The dot product of a random row with itself, about 64, is the largest.
    const float* row = logits.tensor.as<float>() + r * 100;
    EXPECT_EQ(std::max_element(row, row + 100) - row, ids[static_cast<size_t>(r)]);
  }
}

TEST(CpuBackend, StepsMayRunOnAnotherThreadThanTheOneThatLoaded) {
  const auto backend = make_cpu_backend(2);
  const Matrix w = random_matrix(DType::kF32, 600, 600, 1),
               x = random_matrix(DType::kF32, 9, 600, 2);
  const WeightPtr packed = backend->pack(w.tensor, DType::kF32);
  Matrix here(DType::kF32, 9, 600), there(DType::kF32, 9, 600);
  backend->matmul(here.tensor, x.tensor, *packed);
  std::thread([&] { backend->matmul(there.tensor, x.tensor, *packed); }).join();
  EXPECT_EQ(here.bytes, there.bytes);
}

}  // namespace
}  // namespace nanovllm::cpu
