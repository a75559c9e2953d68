#include <algorithm>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"
#include "nanovllm/checkpoint/quantized/dialect.h"

namespace nanovllm {

// Reads quant_method "fp8". DeepSeek and Qwen publish it with weight [n, k] in E4M3, and
// weight_scale_inv with a scale for each block of weight_block_size. vLLM writes it without that
// key, with one weight_scale for the whole matrix. Scales of activations (activation_scheme
// "static") are not needed, because activations get their scales at run time.
Quantization fp8(const JsonFields& config) {
  if (config.text("fmt", "e4m3") != "e4m3") config.refuse("fmt", "it must be e4m3");
  const std::string scheme = config.text("activation_scheme", "dynamic");
  if (scheme != "dynamic" && scheme != "static")
    config.refuse("activation_scheme", "it must be dynamic or static");
  int64_t block_rows = 0, block_columns = 0;  // 0: all rows or columns
  if (const Json* block = config.find("weight_block_size")) {
    require(block->is_array() && block->size() == 2 &&
                std::ranges::all_of(*block,
                                    [](const Json& size) {
                                      return size.is_number_integer() && size >= 1 && size <= 65536;
                                    }),
            "{}weight_block_size is {}; it must be two integers from 1 to 65536", config.prefix(),
            printable(*block));
    block_rows = block->front().get<int64_t>();
    block_columns = block->back().get<int64_t>();
  }
  const E4M3Weights weights = {block_rows > 0 ? ".weight_scale_inv" : ".weight_scale", block_rows,
                               block_columns};
  const auto take = [=, prefix = config.prefix()](TensorSource& tensors, const std::string& module,
                                                  int64_t rows,
                                                  int64_t columns) -> std::optional<WeightRows> {
    if (tensors.has(module + weights.suffix)) return weights.take(tensors, module, rows, columns);
    require(!tensors.has(module + ".weight_scale_inv"),
            "{}weight_block_size is missing, but {}.weight_scale_inv has scales of blocks", prefix,
            module);
    return std::nullopt;
  };
  return {block_rows > 0 ? fmt::format("fp8, blocks of {} x {}", block_rows, block_columns)
                         : std::string("fp8, a scale for each matrix"),
          take, read_names(config, "modules_to_not_convert"), 1,
          column_unit(QuantizedFormat::kE4M3, block_columns)};
}

WeightRows E4M3Weights::take(TensorSource& tensors, const std::string& module, int64_t rows,
                             int64_t columns) const {
  const int64_t scale_rows = block_rows > 0 ? block_rows : rows;
  const int64_t scale_columns = block_columns > 0 ? block_columns : columns;
  const WeightRows weight = tensors.take(module + ".weight", {rows, columns}, {DType::kE4M3});
  const WeightRows scales =
      tensors.take(module + suffix, {ceil_div(rows, scale_rows), ceil_div(columns, scale_columns)});
  return {rows, columns, [=, quantizes = quantizes_activations] {
            return QuantizedMatrix{.format = QuantizedFormat::kE4M3,
                                   .num_rows = rows,
                                   .num_columns = columns,
                                   .scale_rows = scale_rows,
                                   .scale_columns = scale_columns,
                                   .scales = read_floats(scales),
                                   .quantizes_activations = quantizes,
                                   .values = [weight](Range some, Range of, uint8_t* to) {
                                     weight.part(some, of).read(0, some.count, to);
                                   }};
          }};
}

}  // namespace nanovllm
