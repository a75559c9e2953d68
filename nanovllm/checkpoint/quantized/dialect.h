#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/json_fields.h"
#include "nanovllm/checkpoint/tensor_source.h"
#include "nanovllm/ops/quantized.h"

namespace nanovllm {

/// How a checkpoint stores its quantized weights. Each file of this folder is a dialect: a function
/// that reads quantization_config, refuses by name any value that it does not know, and returns a
/// Quantization.
struct Quantization {
  /// A text for people: the dialect, the format, and which values share a scale.
  std::string description;
  /// The weight [rows, columns] of a module, which is its name without ".weight", or none if the
  /// checkpoint has left it unquantized.
  std::function<std::optional<WeightRows>(TensorSource& tensors, const std::string& module,
                                          int64_t rows, int64_t columns)>
      take;
  /// Modules that stay unquantized, as the dialect lists them: names, or parts of names.
  std::vector<std::string> left_out = {};
  /// The bytes of a weight with its share of scale and zero point, if a backend keeps it quantized.
  double bytes_per_value = 1;
  /// Ranks should divide columns at multiples of this, so that GPUs keep their parts quantized. 0:
  /// GPUs make floats of all weights, because their groups are too narrow or in activation order.
  int64_t column_unit = 1;
  std::string quant_method = {};  ///< in the checkpoint; empty if the weights are quantized at load
};

Quantization fp8(const JsonFields& config);
Quantization compressed_tensors(const JsonFields& config);
Quantization awq(const JsonFields& config);
Quantization gptq(const JsonFields& config);
Quantization auto_round(const JsonFields& config);
Quantization modelopt(const JsonFields& config);

/// Whether config.json says how weights are quantized.
bool has_quantization(const JsonFields& config);
/// The quantization that a file beside config.json describes, as old exporters wrote it:
/// hf_quant_config.json, quantize_config.json or quant_config.json.
std::optional<JsonFields> read_quantization_file(const std::string& folder);

/// The quantization that the key quantization_config of config.json describes or, without that key,
/// `file` (read_quantization_file). `asked` is EngineConfig::quantization. The name of the
/// checkpoint's own method means auto. With fp8 or int8, projections that the checkpoint has not
/// quantized are quantized when they are read, and with `vocabulary` the embedding and the head
/// too. Throws UserError for the name of another method.
std::optional<Quantization> parse_quantization(const JsonFields& config,
                                               const std::string& asked = "auto",
                                               bool vocabulary = false,
                                               const std::optional<JsonFields>& file = {});
/// Takes the tensor `name`. A weight of two dimensions may be quantized.
WeightRows take_weight(TensorSource& tensors, const std::optional<Quantization>& quantization,
                       const std::string& name, const std::vector<int64_t>& shape);
/// Whether a checkpoint of this quantization has quantized tensors for `module`.
bool is_quantized(const std::optional<Quantization>& quantization, const std::string& module);

// -- for the dialects
/// Weights of any float dtype that become E4M3 (fp8) or int8 when they are read. This is no
/// dialect.
Quantization quantization_at_load(const std::string& format, bool vocabulary);
/// Whether a module is a projection of a layer. Embeddings, the head and routers are not.
bool is_linear(const std::string& module);
/// Weights in E4M3: module + ".weight", and scales module + `suffix`, one for each block.
struct E4M3Weights {
  std::string suffix;
  int64_t block_rows = 0, block_columns = 0;  ///< the size of a block; 0: all rows or columns
  bool quantizes_activations = true;          ///< see QuantizedMatrix

  WeightRows take(TensorSource& tensors, const std::string& module, int64_t rows,
                  int64_t columns) const;
};
/// Quantization::column_unit for groups of this many columns. kOneGroup or 0 means a whole row.
int64_t column_unit(QuantizedFormat format, int64_t group_columns);
/// The elements of a small tensor as float32.
std::vector<float> read_floats(const WeightRows& tensor);
/// Makes [columns, rows] out of `values` [rows, columns], for scales that are stored transposed.
std::vector<float> transpose(const std::vector<float>& values, int64_t rows);
/// All 32-bit words of a tensor.
std::vector<uint32_t> read_words(const WeightRows& tensor);
/// Field `index` of row `row` in `words` [rows, words in a row], which hold fields of `bits` bits,
/// the first in the lowest bits.
inline uint32_t field_at(const std::vector<uint32_t>& words, int64_t words_in_row, int64_t row,
                         int64_t index, int bits) {
  const int64_t in_word = 32 / bits;
  const uint32_t word = words[static_cast<size_t>(row * words_in_row + index / in_word)];
  return word >> (index % in_word * bits) & ((1u << bits) - 1);
}
/// The most names in a list. Every module is compared with every name; published lists have some
/// hundred (progress.bounded-work).
constexpr size_t kMostNames = 4096;
/// The list of strings `key`, empty if it is absent.
std::vector<std::string> read_names(const JsonFields& config, const char* key);
/// The number of columns that share a scale is `key` of `config`. If it is -1 or absent, there is
/// one group, whose size is kOneGroup.
constexpr int64_t kOneGroup = 1 << 30;
int64_t read_group_size(const JsonFields& config, const char* key = "group_size");
/// Quantization::bytes_per_value for integers. A group has a scale and a zero point of four bytes
/// each at most.
inline double bytes_per_value(int64_t bits, int64_t group_size) {
  return static_cast<double>(bits) / 8 + 8 / static_cast<double>(group_size);
}
/// The group of each column, from the tensor `name`. Throws UserError at once if a number is not
/// below `num_groups`, so that a checkpoint can be checked without reading its weights.
std::vector<int32_t> take_groups(TensorSource& tensors, const std::string& name,
                                 int64_t num_columns, int64_t num_groups);

}  // namespace nanovllm
