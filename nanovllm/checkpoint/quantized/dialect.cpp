#include "nanovllm/checkpoint/quantized/dialect.h"

#include <algorithm>
#include <array>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

struct Name {
  const char* quant_method;
  Quantization (*parse)(const JsonFields&);
};
constexpr std::array kDialects = {Name{"fp8", fp8}, Name{"compressed-tensors", compressed_tensors},
                                  Name{"awq", awq}, Name{"gptq", gptq}};

std::optional<Quantization> parse_dialect(const JsonFields& config) {
  // The second name is that of old exporters of compressed-tensors.
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (config.find(key) == nullptr) continue;
    const JsonFields fields = config.object(key);
    const std::string method = fields.text("quant_method", "");
    for (const Name& dialect : kDialects) {
      if (method != dialect.quant_method) continue;
      Quantization own = dialect.parse(fields);
      own.quant_method = method;
      return own;
    }
    fail(
        "{}quant_method is {}, which is not supported; supported are fp8, compressed-tensors, awq "
        "and gptq",
        fields.prefix(), printable(method));
  }
  return std::nullopt;
}

}  // namespace

std::optional<Quantization> parse_quantization(const JsonFields& config, const std::string& asked,
                                               bool vocabulary) {
  std::optional<Quantization> own = parse_dialect(config);
  // vLLM's names of its kernels for a method end in _marlin.
  const std::string method = asked.substr(0, asked.find("_marlin"));
  if (asked == "auto" || (own && own->quant_method == method)) return own;
  require(asked == "fp8" || asked == "int8",
          "the checkpoint is not quantized with {}; leave quantization out", method);
  Quantization made = quantization_at_load(asked, vocabulary);
  if (!own) return made;
  own->description += fmt::format("; the rest {}", made.description);
  own->take = [dialect = own->take, rest = made.take](
                  TensorSource& tensors, const std::string& module, int64_t rows, int64_t columns) {
    std::optional<WeightRows> weight = dialect(tensors, module, rows, columns);
    return weight ? weight : rest(tensors, module, rows, columns);
  };
  return own;
}

WeightRows take_weight(TensorSource& tensors, const std::optional<Quantization>& quantization,
                       const std::string& name, const std::vector<int64_t>& shape) {
  constexpr std::string_view kSuffix = ".weight";
  if (quantization && shape.size() == 2 && name.ends_with(kSuffix)) {
    const std::string module = name.substr(0, name.size() - kSuffix.size());
    if (auto weight = quantization->take(tensors, module, shape[0], shape[1])) return *weight;
  }
  return tensors.take(name, shape);
}

// Checkpoints do not always list routers, but they are never quantized.
bool is_linear(const std::string& module) {
  return module.starts_with("model.layers.") && !module.ends_with(".mlp.gate");
}

bool is_quantized(const std::optional<Quantization>& quantization, const std::string& module) {
  if (!quantization || !is_linear(module)) return false;
  return std::ranges::none_of(quantization->left_out, [&](std::string part) {
    // A regular expression of compressed-tensors; published ones have wildcards at the ends only.
    if (part.starts_with("re:.*")) part = part.substr(5);
    for (const std::string_view end : {".*", "$"})
      if (part.ends_with(end)) part.resize(part.size() - end.size());
    return module.find(part) != std::string::npos;
  });
}

int64_t column_unit(QuantizedFormat format, int64_t group_columns) {
  if (group_columns == 0 || group_columns == kOneGroup) return 1;
  const int64_t least = least_gpu_group(format);
  return group_columns % least == 0 ? least : 0;
}

std::vector<float> read_floats(const WeightRows& tensor) {
  const auto count = static_cast<size_t>(tensor.num_rows() * tensor.num_columns());
  std::vector<char> bytes(count * dtype_size(tensor.dtype()));
  tensor.read(0, tensor.num_rows(), bytes.data());
  const auto* const halves = reinterpret_cast<const uint16_t*>(bytes.data());
  const auto* const floats = reinterpret_cast<const float*>(bytes.data());
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i)
    out[i] = tensor.dtype() == DType::kBF16  ? bf16_to_f32(halves[i])
             : tensor.dtype() == DType::kF16 ? f16_to_f32(halves[i])
                                             : floats[i];
  return out;
}

std::vector<float> transpose(const std::vector<float>& values, int64_t rows) {
  const auto height = static_cast<size_t>(rows), width = values.size() / height;
  std::vector<float> out(values.size());
  for (size_t row = 0; row < height; ++row)
    for (size_t column = 0; column < width; ++column)
      out[column * height + row] = values[row * width + column];
  return out;
}

std::vector<uint32_t> read_words(const WeightRows& tensor) {
  std::vector<uint32_t> words(static_cast<size_t>(tensor.num_rows() * tensor.num_columns()));
  tensor.read(0, tensor.num_rows(), words.data());
  return words;
}

std::vector<std::string> read_names(const JsonFields& config, const char* key) {
  // Every module is compared with every name; published lists have some hundred
  // (progress.bounded-work).
  constexpr size_t kMostNames = 4096;
  const Json* list = config.find(key);
  if (list == nullptr) return {};
  require(list->size() <= kMostNames, "{}{} has {} names; at most {} are supported",
          config.prefix(), key, list->size(), kMostNames);
  require(list->is_array() && std::ranges::all_of(*list, &Json::is_string),
          "{}{} is {}; it must be a list of names", config.prefix(), key, printable(*list));
  return list->get<std::vector<std::string>>();
}

int64_t read_group_size(const JsonFields& config) {
  const Json* size = config.find("group_size");
  if (size == nullptr || *size == -1) return kOneGroup;
  return config.integer("group_size", kOneGroup);
}

std::vector<int32_t> take_groups(TensorSource& tensors, const std::string& name,
                                 int64_t num_columns, int64_t num_groups) {
  std::vector<int32_t> groups(static_cast<size_t>(num_columns));
  tensors.take(name, {num_columns}, {DType::kI32}).read(0, num_columns, groups.data());
  for (const int32_t group : groups)
    require(group >= 0 && group < num_groups, "{}: a column is in group {}; there are {} groups",
            name, group, num_groups);
  return groups;
}

}  // namespace nanovllm
