#include <algorithm>
#include <memory>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

// quant_method "gptq" (Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative
// Pre-trained Transformers", 2022), as AutoGPTQ and GPTQModel write it: qweight [k / fields of a
// word, n], qzeros [groups, n / fields], scales [groups, n], g_idx [k] the group of each column.
// Zero points are stored as one less than they are, unless checkpoint_format is gptq_v2.
Quantization gptq(const JsonFields& config) {
  const int64_t bits_given = config.integer("bits", 64);
  if (bits_given != 4 && bits_given != 8) config.refuse("bits", "it must be 4 or 8");
  const std::string format = config.text("checkpoint_format", "gptq");
  if (format != "gptq" && format != "gptq_v2")
    config.refuse("checkpoint_format", "it must be gptq or gptq_v2");
  if (config.boolean("is_marlin_format", false))
    config.refuse("is_marlin_format", "it must be false");
  // A rule "-:PATTERN" leaves modules out.
  if (config.find("dynamic") != nullptr && *config.find("dynamic") != false)
    for (const std::string& rule : config.object("dynamic").keys())
      if (!rule.starts_with("-:")) config.refuse("dynamic", "all modules must be quantized alike");
  const int64_t group_size = read_group_size(config);
  const bool ordered = config.boolean("desc_act", false);
  const int bits = static_cast<int>(bits_given), less = format == "gptq" ? 1 : 0;

  const auto take = [=](TensorSource& tensors, const std::string& module, int64_t rows,
                        int64_t columns) -> std::optional<WeightRows> {
    if (!tensors.has(module + ".qweight")) return std::nullopt;
    const int64_t size = std::min(group_size, columns), groups = ceil_div(columns, size);
    const int64_t fields = 32 / bits, zero_words = ceil_div(rows, fields);
    const WeightRows weight =
        tensors.take(module + ".qweight", {ceil_div(columns, fields), rows}, {DType::kI32});
    const WeightRows zeros = tensors.take(module + ".qzeros", {groups, zero_words}, {DType::kI32});
    const WeightRows scales = tensors.take(module + ".scales", {groups, rows});
    std::vector<int32_t> group_of;
    if (tensors.has(module + ".g_idx") || (ordered && groups > 1)) {
      group_of = take_groups(tensors, module + ".g_idx", columns, groups);
      // Without activation order the indices usually count up in groups; then they are not needed.
      bool consecutive = true;
      for (int64_t i = 0; i < columns; ++i)
        consecutive &= group_of[static_cast<size_t>(i)] == i / size;
      if (consecutive) group_of.clear();
    }
    return WeightRows(rows, columns, [=] {
      QuantizedMatrix m{.format = bits == 8 ? QuantizedFormat::kInt8 : QuantizedFormat::kInt4,
                        .num_rows = rows,
                        .num_columns = columns,
                        .scale_columns = size,
                        .scales = transpose(read_floats(scales), groups),
                        .groups = group_of};
      m.zeros.resize(m.scales.size());
      const std::vector<uint32_t> zero_fields = read_words(zeros);
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t group = 0; group < groups; ++group)
          m.zeros[static_cast<size_t>(row * groups + group)] = static_cast<int16_t>(
              static_cast<int>(field_at(zero_fields, zero_words, group, row, bits)) + less);
      const auto all = std::make_shared<const std::vector<uint32_t>>(read_words(weight));
      m.values = [=](Range some, Range of, uint8_t* to) {
        for (int64_t i = 0; i < of.count; ++i) {
          const int64_t column = of.first + i, shift = column % fields * bits;
          const uint32_t* const words = all->data() + column / fields * rows + some.first;
          for (int64_t j = 0; j < some.count; ++j)
            to[j * of.count + i] = static_cast<uint8_t>(words[j] >> shift & ((1u << bits) - 1));
        }
      };
      return m;
    });
  };
  const std::string group =
      group_size == kOneGroup ? "a scale for each row" : fmt::format("groups of {}", group_size);
  return {fmt::format("gptq, int{}, {}{}", bits, group, ordered ? ", activation order" : ""),
          take,
          {},
          bytes_per_value(bits, group_size),
          ordered ? 0 : column_unit(QuantizedFormat::kInt4, group_size)};
}

}  // namespace nanovllm
