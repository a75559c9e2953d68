#include "nanovllm/checkpoint/dummy_weights.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace nanovllm {

namespace {

// A prime number, so that no two rows of a matrix with up to 2^20 rows are equal.
constexpr size_t kTableSize = (1 << 20) + 7;

// Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
uint64_t splitmix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The sum of four uniform 16-bit numbers is close enough to a normal distribution, and it is the
// same on every machine.
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

using Bytes = std::vector<char>;

template <class Value>
std::shared_ptr<const Bytes> make_table(size_t size, DType dtype, const Value& value) {
  auto bytes = std::make_shared<Bytes>(size * dtype_size(dtype));
  for (size_t i = 0; i < size; ++i) store(&(*bytes)[i * dtype_size(dtype)], dtype, value(i));
  return bytes;
}

/// Fills `to` with `bytes` bytes of the table, from byte `start` of its endless repetition.
void copy_repeated(const Bytes& table, size_t start, char* to, size_t bytes) {
  for (size_t from = start % table.size(); bytes > 0; from = 0) {
    const size_t count = std::min(bytes, table.size() - from);
    std::memcpy(to, table.data() + from, count);
    to += count;
    bytes -= count;
  }
}

}  // namespace

WeightSource dummy_weights(DType dtype, float initializer_range) {
  const auto normal =
      make_table(kTableSize, dtype, [&](size_t i) { return initializer_range * near_normal(i); });
  const auto ones = make_table(4096, dtype, [](size_t) { return 1; });
  return [=](const std::string& name, const std::vector<int64_t>& shape) -> WeightRows {
    uint64_t seed = 0;
    for (const char c : name) seed = splitmix64(seed ^ static_cast<unsigned char>(c));
    const auto read = [table = name.ends_with("norm.weight") ? ones : normal, seed,
                       size = dtype_size(dtype)](int64_t first, int64_t count, void* to) {
      const size_t num_values = table->size() / size;
      copy_repeated(*table, (seed + static_cast<size_t>(first)) % num_values * size,
                    static_cast<char*>(to), static_cast<size_t>(count) * size);
    };
    return {dtype, shape[0], shape.size() == 1 ? 1 : shape[1], read};
  };
}

}  // namespace nanovllm
