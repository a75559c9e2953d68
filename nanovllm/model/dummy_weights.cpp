#include "nanovllm/model/dummy_weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

// A prime, so that matrices of up to 2^20 rows have no two equal ones.
constexpr size_t kTableSize = (1 << 20) + 7;

// Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Four uniform 16-bit numbers added up: near enough to a normal distribution, and the same on every
// machine.
float near_normal(uint64_t index) {
  constexpr float kMean = 4 * 65535 / 2.0f, kDeviation = 37837.2f;
  const uint64_t x = splitmix64(index);
  const auto sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
  return (static_cast<float>(sum) - kMean) / kDeviation;
}

void store(void* to, DType dtype, float value) {
  const uint16_t half = dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(to, dtype == DType::kF32 ? static_cast<const void*>(&value) : &half,
              dtype_size(dtype));
}

}  // namespace

DummyWeights::DummyWeights(DType dtype, float initializer_range)
    : dtype_(dtype), table_(kTableSize * dtype_size(dtype)) {
  for (size_t i = 0; i < kTableSize; ++i)
    store(&table_[i * dtype_size(dtype)], dtype, initializer_range * near_normal(i));
}

HostTensor DummyWeights::operator()(const std::string& name,
                                    const std::vector<int64_t>& shape) const {
  const bool is_vector = shape.size() == 1;
  HostTensor tensor;
  tensor.view =
      is_vector ? Tensor(nullptr, dtype_, shape[0]) : Tensor(nullptr, dtype_, shape[0], shape[1]);
  const size_t bytes = tensor.view.bytes(), size = dtype_size(dtype_);
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  require(mapped != MAP_FAILED, "not enough memory for {} bytes of random weights, {}", bytes,
          name);
  madvise(mapped, bytes, MADV_HUGEPAGE);  // else most of the time goes to page faults
  const std::shared_ptr<char> memory(static_cast<char*>(mapped),
                                     [bytes](char* p) { munmap(p, bytes); });
  if (name.ends_with("norm.weight")) {
    for (size_t at = 0; at < bytes; at += size) store(memory.get() + at, dtype_, 1);
  } else {
    uint64_t seed = 0;
    for (const char c : name) seed = splitmix64(seed ^ static_cast<unsigned char>(c));
    size_t from = seed % kTableSize * size;
    for (size_t at = 0; at < bytes; from = 0) {
      const size_t count = std::min(bytes - at, table_.size() - from);
      std::memcpy(memory.get() + at, &table_[from], count);
      at += count;
    }
  }
  tensor.view.data = memory.get();
  tensor.memory = memory;
  return tensor;
}

}  // namespace nanovllm
