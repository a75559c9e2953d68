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

/// How a group of modules is quantized.
struct Scheme {
  std::string type, strategy;
  int64_t bits = 0, group_size = kOneGroup;
  bool symmetric = true, ordered = false, quantizes_activations = false;

  bool operator==(const Scheme&) const = default;
};

Scheme read_scheme(const JsonFields& config, const JsonFields& group) {
  const JsonFields weights = group.object("weights");
  Scheme scheme = {.type = weights.text("type", "int"),
                   .strategy = weights.text("strategy", "tensor"),
                   .bits = weights.integer("num_bits", 64),
                   .quantizes_activations = group.find("input_activations") != nullptr};
  if (scheme.type == "float") {
    if (scheme.bits != 8) weights.refuse("num_bits", "floats must have 8 bits");
    if (scheme.strategy == "block") {
      const Json* block = weights.find("block_structure");
      require(block != nullptr && *block == Json::array({128, 128}),
              "{}block_structure must be [128, 128]", weights.prefix());
    } else if (scheme.strategy != "tensor" && scheme.strategy != "channel") {
      weights.refuse("strategy", "of floats it must be tensor, channel or block");
    }
    return scheme;
  }
  if (scheme.type != "int") weights.refuse("type", "it must be float or int");
  if (scheme.bits != 4 && scheme.bits != 8)
    weights.refuse("num_bits", "integers must have 4 or 8 bits");
  // A group of modules has a format of its own if the groups have different formats.
  const JsonFields& format = group.find("format") != nullptr ? group : config;
  if (format.text("format", "") != "pack-quantized")
    format.refuse("format", "of integers it must be pack-quantized");
  if (scheme.quantizes_activations)
    group.refuse("input_activations", "with integer weights it must be null");
  if (scheme.strategy != "group" && scheme.strategy != "channel")
    weights.refuse("strategy", "of integers it must be group or channel");
  if (scheme.strategy == "group") scheme.group_size = read_group_size(weights);
  scheme.symmetric = weights.boolean("symmetric", true);
  scheme.ordered = has_group_order(weights);
  return scheme;
}

/// Reads the one scheme of all groups. Their targets are not needed, because the tensors show which
/// modules are quantized.
Scheme read_schemes(const JsonFields& config) {
  const JsonFields groups = config.object("config_groups");
  std::optional<Scheme> all;
  for (const std::string& name : groups.keys()) {
    const Scheme scheme = read_scheme(config, groups.object(name.c_str()));
    if (all && scheme != *all)
      config.refuse("config_groups", "all groups must quantize weights alike");
    all = scheme;
  }
  if (!all) config.refuse("config_groups", "there must be a group");
  return *all;
}

}  // namespace

// quant_method "compressed-tensors", as llm-compressor writes it.
Quantization compressed_tensors(const JsonFields& config) {
  // Old exporters call compressed weights frozen.
  const std::string status = config.text("quantization_status", "compressed");
  if (status != "compressed" && status != "frozen")
    config.refuse("quantization_status", "it must be compressed or frozen");
  for (const char* key : {"sparsity_config", "transform_config"})
    if (find(config, key) != nullptr) config.refuse(key, "it must be empty");
  const Scheme scheme = read_schemes(config);
  std::vector<std::string> left_out = read_names(config, "ignore");

  if (scheme.type == "float") {
    E4M3Weights e4m3 = {".weight_scale", 1, 0, scheme.quantizes_activations};
    if (scheme.strategy == "tensor") e4m3.block_rows = 0;
    if (scheme.strategy == "block") e4m3.block_rows = e4m3.block_columns = 128;
    return {fmt::format("compressed-tensors, fp8, a scale for each {}", scheme.strategy),
            [=](TensorSource& tensors, const std::string& module, int64_t rows,
                int64_t columns) -> std::optional<WeightRows> {
              if (!tensors.has(module + e4m3.suffix)) return std::nullopt;
              return e4m3.take(tensors, module, rows, columns);
            },
            std::move(left_out), 1, column_unit(QuantizedFormat::kE4M3, e4m3.block_columns)};
  }
  const Packed packed = {static_cast<int>(scheme.bits), scheme.group_size, scheme.symmetric,
                         scheme.ordered};
  return {
      scheme.strategy == "group"
          ? fmt::format("compressed-tensors, int{}, groups of {}", packed.bits, packed.group_size)
          : fmt::format("compressed-tensors, int{}, a scale for each row", packed.bits),
      [=](TensorSource& tensors, const std::string& module, int64_t rows, int64_t columns) {
        return packed.take(tensors, module, rows, columns);
      },
      std::move(left_out), bytes_per_value(packed.bits, packed.group_size),
      packed.ordered ? 0 : column_unit(QuantizedFormat::kInt4, packed.group_size)};
}

}  // namespace nanovllm
