#include "nanovllm/model/dummy_weights.h"

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

DummyWeights::DummyWeights(DType dtype, float initializer_range) : dtype_(dtype) {
  const auto table = [&](size_t size, const auto& value) {
    auto bytes = std::make_shared<std::vector<char>>(size * dtype_size(dtype));
    for (size_t i = 0; i < size; ++i) store(&(*bytes)[i * dtype_size(dtype)], dtype, value(i));
    return bytes;
  };
  normal_ = table(kTableSize, [&](size_t i) { return initializer_range * near_normal(i); });
  ones_ = table(4096, [](size_t) { return 1; });
}

WeightRows DummyWeights::operator()(const std::string& name,
                                    const std::vector<int64_t>& shape) const {
  uint64_t seed = 0;
  for (const char c : name) seed = splitmix64(seed ^ static_cast<unsigned char>(c));
  const int64_t num_columns = shape.size() == 1 ? 1 : shape[1];
  return {dtype_, shape[0], num_columns,
          [table = name.ends_with("norm.weight") ? ones_ : normal_, seed, num_columns,
           size = dtype_size(dtype_)](Range rows, Range columns, void* to) {
            const size_t table_size = table->size() / size;
            char* out = static_cast<char*>(to);
            // `count` elements from number `first` of the tensor on.
            const auto copy = [&](int64_t first, int64_t count) {
              size_t from = (seed + static_cast<size_t>(first)) % table_size * size;
              for (size_t left = static_cast<size_t>(count) * size; left > 0; from = 0) {
                const size_t bytes = std::min(left, table->size() - from);
                std::memcpy(out, table->data() + from, bytes);
                out += bytes;
                left -= bytes;
              }
            };
            if (columns.count == num_columns)
              return copy(rows.first * num_columns, rows.count * num_columns);
            for (int64_t i = 0; i < rows.count; ++i)
              copy((rows.first + i) * num_columns + columns.first, columns.count);
          }};
}

}  // namespace nanovllm
