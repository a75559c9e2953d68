#include <algorithm>
#include <array>
#include <memory>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

namespace {

constexpr int kBits = 4;
constexpr int64_t kFields = 32 / kBits;
/// For each of the eight columns in a word, the field of the word that holds it.
constexpr std::array<int64_t, kFields> kFieldOf = {0, 4, 1, 5, 2, 6, 3, 7};

int64_t field_of(int64_t row) {
  return row / kFields * kFields + kFieldOf[static_cast<size_t>(row % kFields)];
}

}  // namespace

// quant_method "awq" (Lin et al., "AWQ: Activation-aware Weight Quantization", 2023), version
// "gemm" of AutoAWQ: qweight [k, n / 8], qzeros [groups, n / 8], scales [groups, n].
Quantization awq(const JsonFields& config) {
  const std::string version = config.text("version", "gemm");
  if (version != "gemm" && version != "GEMM") config.refuse("version", "it must be gemm");
  // AutoAWQ's own file, quant_config.json, has other names than config.json.
  const char* const bits = config.contains("w_bit") ? "w_bit" : "bits";
  if (config.integer(bits, 64, 4) != kBits) config.refuse(bits, "it must be 4");
  if (!config.boolean("zero_point", true)) config.refuse("zero_point", "it must be true");
  const int64_t group_size =
      read_group_size(config, config.contains("q_group_size") ? "q_group_size" : "group_size");
  const auto take = [=](TensorSource& tensors, const std::string& module, int64_t rows,
                        int64_t columns) -> std::optional<WeightRows> {
    if (!tensors.has(module + ".qweight")) return std::nullopt;
    const int64_t size = std::min(group_size, columns), groups = ceil_div(columns, size);
    const int64_t words = ceil_div(rows, kFields);
    const WeightRows weight = tensors.take(module + ".qweight", {columns, words}, {DType::kI32});
    const WeightRows zeros = tensors.take(module + ".qzeros", {groups, words}, {DType::kI32});
    const WeightRows scales = tensors.take(module + ".scales", {groups, rows});
    return WeightRows(rows, columns, [=] {
      QuantizedMatrix m{.format = QuantizedFormat::kInt4,
                        .num_rows = rows,
                        .num_columns = columns,
                        .scale_columns = size,
                        .scales = transpose(read_floats(scales), groups)};
      m.zeros.resize(m.scales.size());
      const std::vector<uint32_t> zero_words = read_words(zeros);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t group = 0; group < groups; ++group)
          m.zeros[static_cast<size_t>(row * groups + group)] =
              static_cast<int16_t>(field_at(zero_words, words, group, field_of(row), kBits));
      const auto all = std::make_shared<const std::vector<uint32_t>>(read_words(weight));
      m.values = [all, words](Range some, Range of, uint8_t* to) {
        for (int64_t i = 0; i < of.count; ++i)
          for (int64_t j = 0; j < some.count; ++j) {
            const int64_t row = some.first + j;
            to[j * of.count + i] =
                static_cast<uint8_t>(field_at(*all, words, of.first + i, field_of(row), kBits));
          }
      };
      return m;
    });
  };
  return {fmt::format("awq, int4, groups of {}", group_size), take,
          read_names(config, "modules_to_not_convert"), bytes_per_value(kBits, group_size),
          column_unit(QuantizedFormat::kInt4, group_size)};
}

}  // namespace nanovllm
