#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/system/input_file.h"

namespace nanovllm {

/// A tensor as a safetensors header describes it, checked against its file.
struct SafetensorsEntry {
  std::string dtype;           ///< the format's name: F32, BF16, I64, ...
  std::vector<int64_t> shape;  ///< empty for a scalar
  size_t offset = 0;           ///< of its first byte in the file
  size_t bytes = 0;
};

/// The tensors of a safetensors file, by name. The format: 8 bytes of little-endian header length,
/// a JSON object of {"dtype", "shape", "data_offsets"}, the data without gaps or overlaps
/// (https://huggingface.co/docs/safetensors). Throws UserError that names the file and the tensor;
/// more than 500,000 tensors, or 64 sizes of one, are refused.
std::map<std::string, SafetensorsEntry> read_safetensors_header(const InputFile& file);
/// The same of a file of `file_bytes` bytes whose beginning, at least up to the header's end, is
/// `start`.
std::map<std::string, SafetensorsEntry> parse_safetensors(std::string_view start, size_t file_bytes,
                                                          const std::string& path);

/// JSON whose objects are sorted maps, for tens of thousands of keys. Throws UserError for equal
/// keys in an object, which would hide a tensor, for deep nesting, and for more than a million
/// names and values in all.
nlohmann::json parse_sorted_json(std::string_view text, const std::string& where);

/// A name out of a file for a message: printable, in one line, cut where it is long.
std::string printable(std::string_view name);

}  // namespace nanovllm
