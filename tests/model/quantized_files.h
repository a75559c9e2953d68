// Files with quantized weights, made as the formats are defined.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "nanovllm/base/dtype.h"
#include "nanovllm/base/json.h"
#include "nanovllm/checkpoint/checkpoint.h"
#include "tests/model/model_test_util.h"

namespace nanovllm {

// Sizes that no group or block divides, except that packed dimensions are multiples of 8.
constexpr int64_t kRows = 40, kColumns = 72;

/// A file of tensors of any dtype.
class Tensors {
 public:
  template <class T>
  void add(const std::string& name, const char* dtype, const std::vector<int64_t>& shape,
           const std::vector<T>& values) {
    const size_t begin = data_.size();
    data_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
  }
  Checkpoint open() const {
    std::string text = header_.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    folder_.write("model.safetensors", safetensors_file(text, data_));
    return Checkpoint(folder_.path());
  }

 private:
  TempFolder folder_;
  Json header_ = Json::object();
  std::string data_;
};

/// A quantized matrix as the definitions of the formats see it: values, and for each element its
/// scale and zero point.
struct Matrix {
  int64_t group = kColumns;  // columns of a group
  int bits = 4;
  std::vector<int> values, zeros;  // [rows, columns], [rows, groups]
  std::vector<float> scales;       // [rows, groups]
  std::vector<int> group_of;       // [columns]

  Matrix(int bits_of_values, int64_t group_size) : group(group_size), bits(bits_of_values) {
    std::mt19937 random(7);
    const int64_t groups = num_groups();
    for (int64_t i = 0; i < kRows * kColumns; ++i)
      values.push_back(static_cast<int>(random() % (1u << bits)));
    for (int64_t i = 0; i < kRows * groups; ++i) {
      zeros.push_back(static_cast<int>(random() % ((1u << bits) - 1)) + 1);
      scales.push_back(static_cast<float>(random() % 64 + 1) / 1024);  // exact in 16 bits
    }
    for (int64_t i = 0; i < kColumns; ++i) group_of.push_back(static_cast<int>(i / group));
  }
  int64_t num_groups() const { return (kColumns + group - 1) / group; }
  int value(int64_t row, int64_t column) const {
    return values[static_cast<size_t>(row * kColumns + column)];
  }
  float element(int64_t row, int64_t column) const {
    const auto at = static_cast<size_t>(row * num_groups() + group_of[static_cast<size_t>(column)]);
    return static_cast<float>(value(row, column) - zeros[at]) * scales[at];
  }
  std::vector<uint16_t> halves(bool transposed, uint16_t (*convert)(float)) const {
    std::vector<uint16_t> out;
    const int64_t groups = num_groups();
    for (int64_t i = 0; i < kRows * groups; ++i) {
      const int64_t at = transposed ? i % kRows * groups + i / kRows : i;
      out.push_back(convert(scales[static_cast<size_t>(at)]));
    }
    return out;
  }
};

/// Words of 32 bits: field p of word w of row r is field(r, w * fields + p).
inline std::vector<uint32_t> pack(int64_t rows, int64_t fields_in_row, int bits,
                                  const std::function<int(int64_t, int64_t)>& field) {
  std::vector<uint32_t> words;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t first = 0; first < fields_in_row; first += 32 / bits) {
      uint32_t word = 0;
      for (int64_t p = 0; p < 32 / bits && first + p < fields_in_row; ++p)
        word |= static_cast<uint32_t>(field(r, first + p)) << (p * bits);
      words.push_back(word);
    }
  return words;
}

inline Tensors gptq_file(const Matrix& m, int stored_less, bool has_groups = true) {
  Tensors file;
  const int64_t fields = 32 / m.bits, groups = m.num_groups();
  std::vector<uint32_t> words(static_cast<size_t>(kColumns / fields * kRows));
  for (int64_t k = 0; k < kColumns; ++k)
    for (int64_t n = 0; n < kRows; ++n)
      words[static_cast<size_t>(k / fields * kRows + n)] |= static_cast<uint32_t>(m.value(n, k))
                                                            << (k % fields * m.bits);
  file.add("m.qweight", "I32", {kColumns / fields, kRows}, words);
  file.add("m.qzeros", "I32", {groups, kRows / fields},
           pack(groups, kRows, m.bits, [&](int64_t g, int64_t n) {
             return m.zeros[static_cast<size_t>(n * groups + g)] - stored_less;
           }));
  file.add("m.scales", "F16", {groups, kRows}, m.halves(true, f32_to_f16));
  if (has_groups) file.add("m.g_idx", "I32", {kColumns}, m.group_of);
  file.add("m.bias", "F16", {kRows}, std::vector<uint16_t>(kRows));
  return file;
}

inline Tensors compressed_file(const Matrix& m, bool symmetric) {
  const int64_t groups = m.num_groups(), fields = 32 / m.bits;
  Tensors file;
  file.add("m.weight_packed", "I32", {kRows, kColumns / fields},
           pack(kRows, kColumns, m.bits, [&](int64_t n, int64_t k) { return m.value(n, k); }));
  file.add("m.weight_scale", "BF16", {kRows, groups}, m.halves(false, f32_to_bf16));
  file.add("m.weight_shape", "I64", {2}, std::vector<int64_t>{kRows, kColumns});
  std::vector<uint32_t> zeros(static_cast<size_t>(kRows / fields * groups));
  for (int64_t n = 0; n < kRows; ++n)
    for (int64_t g = 0; g < groups; ++g)
      zeros[static_cast<size_t>(n / fields * groups + g)] |=
          static_cast<uint32_t>(m.zeros[static_cast<size_t>(n * groups + g)] & ((1 << m.bits) - 1))
          << (n % fields * m.bits);
  if (!symmetric) file.add("m.weight_zero_point", "I32", {kRows / fields, groups}, zeros);
  return file;
}

inline Json compressed_config(const Matrix& m, bool symmetric, const Json& actorder = nullptr) {
  Json weights = {{"type", "int"},
                  {"num_bits", m.bits},
                  {"strategy", m.group == kColumns ? "channel" : "group"},
                  {"symmetric", symmetric},
                  {"actorder", actorder}};
  if (m.group != kColumns) weights["group_size"] = m.group;
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"config_groups", {{"group_0", {{"weights", weights}}}}}};
}

}  // namespace nanovllm
