#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/base/system/input_file.h"

namespace nanovllm {

/// The most tensors of a file. The largest published models have about 200,000 tensors in all files
/// together, counting the scales of every expert. Reading a header of 500,000 tensors takes 0.5 GB
/// and two seconds.
constexpr size_t kMaxTensors = 500'000;

/// A tensor as a safetensors header describes it, checked against the size of its file.
struct SafetensorsEntry {
  std::string dtype;           ///< the format's name of it: F32, BF16, I64, ...
  std::vector<int64_t> shape;  ///< empty for a scalar
  size_t offset = 0;           ///< where the tensor's first byte is in the file
  size_t bytes = 0;
};

/// Reads the header of a safetensors file and returns its tensors by name. The format is 8 bytes of
/// little-endian header length, a JSON object of {"dtype", "shape", "data_offsets"} for each
/// tensor, and then the data without gaps or overlaps (https://huggingface.co/docs/safetensors).
/// Throws UserError that names the file and the tensor. A file with more than kMaxTensors tensors,
/// and a tensor with more than 64 dimensions, are refused (progress.bounded-work).
std::map<std::string, SafetensorsEntry> read_safetensors_header(const InputFile& file);
/// Reads the header of a file of `file_bytes` bytes whose first bytes, at least up to the end of
/// the header, are `start`. Does otherwise what read_safetensors_header() does.
std::map<std::string, SafetensorsEntry> parse_safetensors(std::string_view start, size_t file_bytes,
                                                          const std::string& path);

}  // namespace nanovllm
