#include "nanovllm/checkpoint/dummy_weights.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace nanovllm {

namespace {

// The size is a prime number, so that no two rows of a matrix with up to 2^20 rows are equal.
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

/// A table for each kind of tensor; each tensor is a piece of its endless repetition.
class DummyWeights : public TensorSource {
 public:
  DummyWeights(DType dtype, float initializer_range,
               std::function<bool(const std::string&)> is_quantized)
      : dtype_(dtype), is_quantized_(std::move(is_quantized)) {
    normal_ =
        make_table(kTableSize, dtype, [&](size_t i) { return initializer_range * near_normal(i); });
    ones_ = make_table(4096, dtype, [](size_t) { return 1; });
    if (!is_quantized_) return;
    // The bytes are from 112 to 143, so that 8-bit integers and both halves as 4-bit integers are
    // near the middle of their ranges. With E4M3's deviation one scale suits all formats.
    constexpr float kDeviation = 8;
    scales_ = make_table(4096, dtype, [&](size_t) { return initializer_range / kDeviation; });
    const auto make_bytes = [](const auto& value) {
      auto bytes = std::make_shared<Bytes>(4 * kTableSize);
      for (size_t i = 0; i < bytes->size(); ++i) (*bytes)[i] = static_cast<char>(value(i));
      return bytes;
    };
    e4m3_ = make_bytes([](size_t i) { return f32_to_e4m3(kDeviation * near_normal(i)); });
    words_ = make_bytes([](size_t i) { return 112 + splitmix64(i) % 32; });
  }

  /// Whether the tensor is one by which a module's dialect recognizes quantized weights. Tensors
  /// that a dialect may leave out do not exist.
  bool has(const std::string& name) const override {
    const size_t dot = std::min(name.rfind('.'), name.size());
    constexpr std::array kRequired = {".qweight", ".weight_packed", ".weight_scale",
                                      ".weight_scale_inv"};
    return is_quantized_ && std::ranges::find(kRequired, name.substr(dot)) != kRequired.end() &&
           is_quantized_(name.substr(0, dot));
  }

  WeightRows take(const std::string& name, const std::vector<int64_t>& shape,
                  std::initializer_list<DType> dtypes) override {
    uint64_t seed = 0;
    for (const char c : name) seed = splitmix64(seed ^ static_cast<unsigned char>(c));
    const DType kind = *dtypes.begin();
    const bool is_float = kind != DType::kI32 && kind != DType::kE4M3;
    const DType dtype = is_float ? dtype_ : kind;
    const bool is_scale = name.ends_with("scales") || name.find(".weight_scale") != name.npos;
    const auto& table = kind == DType::kI32             ? words_
                        : kind == DType::kE4M3          ? e4m3_
                        : is_scale                      ? scales_
                        : name.ends_with("norm.weight") ? ones_
                                                        : normal_;
    const auto read = [table, seed, size = dtype_size(dtype)](int64_t first, int64_t count,
                                                              void* to) {
      const size_t num_values = table->size() / size;
      copy_repeated(*table, (seed + static_cast<size_t>(first)) % num_values * size,
                    static_cast<char*>(to), static_cast<size_t>(count) * size);
    };
    const int64_t num_columns = shape.size() == 1 ? 1 : shape[1];
    // All columns are in the first group, because random numbers would not be valid groups.
    if (name.ends_with("g_idx"))
      return {dtype, shape[0], num_columns,
              [size = dtype_size(dtype)](int64_t, int64_t count, void* to) {
                std::memset(to, 0, static_cast<size_t>(count) * size);
              }};
    return {dtype, shape[0], num_columns, read};
  }

 private:
  DType dtype_;
  std::function<bool(const std::string&)> is_quantized_;
  std::shared_ptr<const Bytes> normal_, ones_, scales_, e4m3_, words_;
};

}  // namespace

std::unique_ptr<TensorSource> dummy_weights(
    DType dtype, float initializer_range,
    std::function<bool(const std::string& module)> is_quantized) {
  return std::make_unique<DummyWeights>(dtype, initializer_range, std::move(is_quantized));
}

}  // namespace nanovllm
