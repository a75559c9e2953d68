#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// A tensor as a safetensors header describes it, checked against its file.
struct SafetensorsEntry {
  std::string dtype;           ///< the format's name: F32, BF16, I64, ...
  std::vector<int64_t> shape;  ///< empty for a scalar
  size_t offset = 0;           ///< of its first byte in the file
  size_t bytes = 0;
};

/// The tensors of a whole safetensors file in memory, by name. The format: 8 bytes of little-endian
/// header length, a JSON object of {"dtype", "shape", "data_offsets"}, the data without gaps or
/// overlaps (https://huggingface.co/docs/safetensors). Throws UserError that names `path` and the
/// tensor.
std::map<std::string, SafetensorsEntry> parse_safetensors(std::string_view file,
                                                          const std::string& path);

/// JSON whose objects are sorted maps, for tens of thousands of keys. Throws UserError for equal
/// keys in an object, which would hide a tensor, and for deep nesting.
nlohmann::json parse_sorted_json(std::string_view text, const std::string& where);

/// A name out of a file for a message: printable, in one line, cut where it is long.
std::string printable(std::string_view name);

}  // namespace nanovllm
