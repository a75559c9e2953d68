#include "nanovllm/checkpoint/quantized/dialect.h"

#include <algorithm>
#include <array>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

namespace {

// Old exporters of compressed-tensors used the second name.
constexpr std::array kKeys = {"quantization_config", "compression_config"};

struct Name {
  const char* quant_method;
  Quantization (*parse)(const JsonFields&);
};
constexpr std::array kDialects = {Name{"fp8", fp8},
                                  Name{"compressed-tensors", compressed_tensors},
                                  Name{"awq", awq},
                                  Name{"gptq", gptq},
                                  Name{"auto-round", auto_round},
                                  Name{"modelopt", modelopt}};

Quantization parse_dialect(const JsonFields& fields) {
  std::string method = fields.text("quant_method", "");
  if (method == "intel/auto-round") method = "auto-round";
  for (const Name& dialect : kDialects) {
    if (method != dialect.quant_method) continue;
    Quantization own = dialect.parse(fields);
    own.quant_method = method;
    return own;
  }
  fail(
      "{}quant_method is {}, which is not supported; supported are fp8, compressed-tensors, awq, "
      "gptq, auto-round and modelopt",
      fields.prefix(), printable(method));
}

}  // namespace

bool has_quantization(const JsonFields& config) {
  return std::ranges::any_of(kKeys, [&](const char* key) { return config.find(key) != nullptr; });
}

std::optional<JsonFields> read_quantization_file(const std::string& folder) {
  constexpr std::array<std::pair<const char*, const char*>, 3> kFiles = {
      {{"hf_quant_config.json", "modelopt"},
       {"quantize_config.json", "gptq"},
       {"quant_config.json", "awq"}}};
  for (const auto& [name, method] : kFiles) {
    const std::string path = fmt::format("{}/{}", folder, name);
    const auto text = read_file_if_there(path, kMaxConfigBytes);
    if (!text) continue;
    Json json = parse_json(*text, path);
    if (json.is_object() && !json.contains("quant_method"))
      json["quant_method"] = json.contains("w_bit") ? "awq" : method;
    return JsonFields(json, path + ": ");
  }
  return std::nullopt;
}

std::optional<Quantization> parse_quantization(const JsonFields& config, const std::string& asked,
                                               bool vocabulary,
                                               const std::optional<JsonFields>& file) {
  std::optional<Quantization> own;
  for (const char* key : kKeys)
    if (!own && config.find(key) != nullptr) own = parse_dialect(config.object(key));
  if (!own && file) own = parse_dialect(*file);
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

// Routers count as not linear: they are never quantized, though not every checkpoint says so.
bool is_linear(const std::string& module) {
  return module.starts_with("model.layers.") && !module.ends_with(".mlp.gate");
}

bool is_quantized(const std::optional<Quantization>& quantization, const std::string& module) {
  if (!quantization || !is_linear(module)) return false;
  return std::ranges::none_of(quantization->left_out, [&](std::string part) {
    // "re:" begins a regular expression of compressed-tensors. Published expressions have wildcards
    // at the ends only.
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
  const Json* list = config.find(key);
  if (list == nullptr) return {};
  require(list->size() <= kMostNames, "{}{} has {} names; at most {} are supported",
          config.prefix(), key, list->size(), kMostNames);
  require(list->is_array() && std::ranges::all_of(*list, &Json::is_string),
          "{}{} is {}; it must be a list of names", config.prefix(), key, printable(*list));
  return list->get<std::vector<std::string>>();
}

int64_t read_group_size(const JsonFields& config, const char* key) {
  const Json* size = config.find(key);
  if (size == nullptr || *size == -1) return kOneGroup;
  return config.integer(key, kOneGroup);
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
