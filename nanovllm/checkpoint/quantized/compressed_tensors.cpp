#include <algorithm>
#include <array>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

namespace {

/// weight_packed [n, k / fields of a word]: along k, each field is the value plus half of the
/// range; a whole number of words for each row. weight_scale [n, groups]. If not symmetric,
/// weight_zero_point [n / fields, groups] is packed along n. In activation order, weight_g_idx [k]
/// has the group of each column.
struct Packed {
  int bits;
  int64_t group_size;
  bool symmetric, ordered;

  std::optional<WeightRows> take(TensorSource& tensors, const std::string& module, int64_t rows,
                                 int64_t columns) const {
    if (!tensors.has(module + ".weight_packed")) return std::nullopt;
    const int64_t fields = 32 / bits, size = std::min(group_size, columns);
    const int64_t groups = ceil_div(columns, size);
    const int64_t row_words = ceil_div(columns, fields);
    const WeightRows packed =
        tensors.take(module + ".weight_packed", {rows, row_words}, {DType::kI32});
    const WeightRows scales = tensors.take(module + ".weight_scale", {rows, groups});
    std::optional<WeightRows> zeros;
    require(!symmetric || !tensors.has(module + ".weight_zero_point"),
            "{}.weight_zero_point contradicts quantization_config, where symmetric is true",
            module);
    if (!symmetric)
      zeros = tensors.take(module + ".weight_zero_point", {ceil_div(rows, fields), groups},
                           {DType::kI32});
    std::vector<int32_t> group_of;
    if (tensors.has(module + ".weight_g_idx") || (ordered && groups > 1))
      group_of = take_groups(tensors, module + ".weight_g_idx", columns, groups);
    if (tensors.has(module + ".weight_shape"))
      require_shape(tensors.take(module + ".weight_shape", {2}, {DType::kI64}), module, rows,
                    columns);
    return WeightRows(rows, columns, [=, bits = bits] {
      QuantizedMatrix m{
          .format = bits == 8 ? QuantizedFormat::kInt8 : QuantizedFormat::kInt4,
          .num_rows = rows,
          .num_columns = columns,
          .scale_columns = size,
          .scales = read_floats(scales),
          .groups = group_of,
          .values = [=](Range some, Range of, uint8_t* to) {
            const std::vector<uint32_t> words = read_words(packed.part(some, {0, row_words}));
            for (int64_t row = 0; row < some.count; ++row)
              for (int64_t i = 0; i < of.count; ++i)
                *to++ = static_cast<uint8_t>(field_at(words, row_words, row, of.first + i, bits));
          }};
      if (zeros) {
        const std::vector<uint32_t> words = read_words(*zeros);
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t group = 0; group < groups; ++group)
            m.zeros.push_back(static_cast<int16_t>(
                words[static_cast<size_t>(row / fields * groups + group)] >> (row % fields * bits) &
                ((1u << bits) - 1)));
      }
      return m;
    });
  }

  static void require_shape(const WeightRows& shape, const std::string& module, int64_t rows,
                            int64_t columns) {
    std::array<int64_t, 2> sizes{};
    shape.read(0, 2, sizes.data());
    require(sizes == std::array{rows, columns},
            "tensor \"{}.weight_shape\" is [{}, {}]; config.json requires [{}, {}]", module,
            sizes[0], sizes[1], rows, columns);
  }
};

const Json* find(const JsonFields& config, const char* key) {
  const Json* value = config.find(key);
  return value != nullptr && !value->empty() ? value : nullptr;
}

/// Whether the groups of columns are in activation order. With "weight" only the quantizer has used
/// that order, and the checkpoint's groups are consecutive columns. The other names are aliases.
bool has_group_order(const JsonFields& weights) {
  const Json* order = weights.find("actorder");
  if (order == nullptr || *order == false || *order == "weight" || *order == "static") return false;
  if (*order != true && *order != "group" && *order != "dynamic")
    weights.refuse("actorder", "it must be group, weight or null");
  return true;
}

}  // namespace

// quant_method "compressed-tensors", as llm-compressor writes it.
Quantization compressed_tensors(const JsonFields& config) {
  const std::string status = config.text("quantization_status", "compressed");
  if (status != "compressed") config.refuse("quantization_status", "it must be compressed");
  for (const char* key : {"sparsity_config", "transform_config"})
    if (find(config, key) != nullptr) config.refuse(key, "it must be empty");
  const JsonFields groups = config.object("config_groups");
  const std::vector<std::string> names = groups.keys();
  if (names.size() != 1) config.refuse("config_groups", "there must be one group");
  const JsonFields group = groups.object(names[0].c_str());
  const JsonFields weights = group.object("weights");
  const std::string type = weights.text("type", "int");
  const std::string strategy = weights.text("strategy", "tensor");
  const int64_t bits = weights.integer("num_bits", 64);
  std::vector<std::string> left_out = read_names(config, "ignore");

  if (type == "float") {
    if (bits != 8) weights.refuse("num_bits", "floats must have 8 bits");
    E4M3Weights e4m3 = {".weight_scale", 1, 0, group.find("input_activations") != nullptr};
    if (strategy == "tensor") {
      e4m3.block_rows = 0;
    } else if (strategy == "block") {
      const Json* block = weights.find("block_structure");
      require(block != nullptr && *block == Json::array({128, 128}),
              "{}block_structure must be [128, 128]", weights.prefix());
      e4m3.block_rows = e4m3.block_columns = 128;
    } else if (strategy != "channel") {
      weights.refuse("strategy", "of floats it must be tensor, channel or block");
    }
    return {fmt::format("compressed-tensors, fp8, a scale for each {}", strategy),
            [=](TensorSource& tensors, const std::string& module, int64_t rows,
                int64_t columns) -> std::optional<WeightRows> {
              if (!tensors.has(module + e4m3.suffix)) return std::nullopt;
              return e4m3.take(tensors, module, rows, columns);
            },
            std::move(left_out), 1, column_unit(QuantizedFormat::kE4M3, e4m3.block_columns)};
  }
  if (type != "int") weights.refuse("type", "it must be float or int");
  if (bits != 4 && bits != 8) weights.refuse("num_bits", "integers must have 4 or 8 bits");
  const std::string format = config.text("format", "");
  if (format != "pack-quantized") config.refuse("format", "of integers it must be pack-quantized");
  if (group.find("input_activations") != nullptr)
    group.refuse("input_activations", "with integer weights it must be null");
  if (strategy != "group" && strategy != "channel")
    weights.refuse("strategy", "of integers it must be group or channel");
  const Packed packed = {static_cast<int>(bits),
                         strategy == "group" ? read_group_size(weights) : kOneGroup,
                         weights.boolean("symmetric", true), has_group_order(weights)};
  return {strategy == "group"
              ? fmt::format("compressed-tensors, int{}, groups of {}", bits, packed.group_size)
              : fmt::format("compressed-tensors, int{}, a scale for each row", bits),
          [=](TensorSource& tensors, const std::string& module, int64_t rows, int64_t columns) {
            return packed.take(tensors, module, rows, columns);
          },
          std::move(left_out), bytes_per_value(packed.bits, packed.group_size),
          packed.ordered ? 0 : column_unit(QuantizedFormat::kInt4, packed.group_size)};
}

}  // namespace nanovllm
