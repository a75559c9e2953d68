#include "nanovllm/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxRank = 64;                  // NumPy's limit
constexpr size_t kMaxHeaderValues = 12 * kMaxTensors;

/// Bytes of one element; 0 if the format has no such dtype.
size_t element_bytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, size_t> kDTypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
  for (const auto& [name, bytes] : kDTypes)
    if (name == dtype) return bytes;
  return 0;
}

/// The list of sizes `object[key]`, or none if it is not a list of sizes. `where` names the tensor.
std::optional<std::vector<int64_t>> find_sizes(const Json& object, const char* key,
                                               const std::string& where) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return std::nullopt;
  require(list->size() <= kMaxRank, "{}: a list of more than {} sizes", where, kMaxRank);
  for (const Json& size : *list)
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) return std::nullopt;
  return list->get<std::vector<int64_t>>();
}

/// One tensor of the header; `offset` is relative to the first byte of the data. `where` names it.
SafetensorsEntry parse_entry(const Json& object, size_t data_bytes, const std::string& where) {
  require(object.is_object(), "{} must be an object", where);
  const auto shape = find_sizes(object, "shape", where);
  const auto offsets = find_sizes(object, "data_offsets", where);
  const auto dtype = object.find("dtype");
  require(dtype != object.end() && dtype->is_string(), "{}: dtype must be a string", where);
  require(shape.has_value(), "{}: shape must be a list of sizes", where);
  require(offsets && offsets->size() == 2, "{}: data_offsets must be a begin and an end", where);
  SafetensorsEntry entry{.dtype = dtype->get<std::string>(), .shape = *shape};
  size_t bytes = element_bytes(entry.dtype);
  require(bytes != 0, "{}: unknown dtype {}", where, printable(entry.dtype));
  for (const int64_t size : entry.shape)
    require(!__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes),
            "{}: its shape has more elements than memory can hold", where);
  const auto begin = static_cast<size_t>(offsets->front());
  const auto end = static_cast<size_t>(offsets->back());
  require(begin <= end && end <= data_bytes,
          "{}: its data are bytes {} to {}, but the file has {} bytes of data; is it incomplete?",
          where, begin, end, data_bytes);
  require(end - begin == bytes, "{}: its data have {} bytes; dtype and shape require {}", where,
          end - begin, bytes);
  entry.offset = begin;
  entry.bytes = bytes;
  return entry;
}

}  // namespace

std::map<std::string, SafetensorsEntry> read_safetensors_header(const InputFile& file) {
  const auto start_of = [&](size_t bytes) {
    std::string start(std::min(bytes, file.size()), '\0');
    file.read(0, start.data(), start.size());
    return start;
  };
  uint64_t header_bytes = 0;
  const std::string length = start_of(kLengthBytes);
  if (length.size() == kLengthBytes) std::memcpy(&header_bytes, length.data(), kLengthBytes);
  return parse_safetensors(start_of(kLengthBytes + std::min(header_bytes, kMaxHeaderBytes)),
                           file.size(), file.path());
}

std::map<std::string, SafetensorsEntry> parse_safetensors(std::string_view start, size_t file_bytes,
                                                          const std::string& path) {
  require(!start.starts_with("version https://git-lfs"),
          "{}: a Git LFS pointer instead of the file; run git lfs pull in its folder", path);
  require(!start.starts_with("GGUF"), "{}: a GGUF file; safetensors files are needed", path);
  require(file_bytes >= kLengthBytes, "{}: not a safetensors file: it has only {} bytes", path,
          file_bytes);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), kLengthBytes);  // x86 and the format are little-endian
  require(header_bytes <= file_bytes - kLengthBytes && header_bytes <= kMaxHeaderBytes,
          "{}: not a safetensors file, or incomplete: a header of {} bytes in a file of {}", path,
          header_bytes, file_bytes);
  const std::string_view header = start.substr(kLengthBytes, header_bytes);
  const size_t data_start = kLengthBytes + header_bytes, data_bytes = file_bytes - data_start;
  std::map<std::string, SafetensorsEntry> entries;
  require(header.starts_with('{'), "{}: not a safetensors file: its header is no JSON object",
          path);
  const Json tensors = parse_sorted_json(header, path + ": header", kMaxHeaderValues);
  require(tensors.size() <= kMaxTensors, "{}: more than {} tensors", path, kMaxTensors);
  for (const auto& [name, object] : tensors.items())
    if (name != "__metadata__")
      entries.emplace(name, parse_entry(object, data_bytes,
                                        fmt::format("{}: tensor {}", path, printable(name))));

  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<Item*> order;
  order.reserve(entries.size());
  for (Item& item : entries) order.push_back(&item);
  std::ranges::sort(order, {}, [](const Item* item) {
    return std::pair(item->second.offset, item->second.bytes);
  });
  size_t end = 0;  // where the data of the tensors so far ends
  for (Item* item : order) {
    auto& [name, entry] = *item;
    require(entry.offset >= end, "{}: tensor {} overlaps another one", path, printable(name));
    require(entry.offset == end, "{}: {} bytes before tensor {} belong to no tensor", path,
            entry.offset - end, printable(name));
    end += entry.bytes;
    entry.offset += data_start;
  }
  require(end == data_bytes, "{}: its last {} bytes belong to no tensor", path, data_bytes - end);
  return entries;
}

}  // namespace nanovllm
