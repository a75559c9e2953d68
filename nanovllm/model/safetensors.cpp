#include "nanovllm/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr int kMaxDepth = 8;

/// Bytes of one element, or 0 for a dtype that the format does not have.
size_t element_bytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, size_t> kDTypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"F64", 8}, {"I64", 8}, {"U64", 8},     {"C64", 8}};
  for (const auto& [name, bytes] : kDTypes)
    if (name == dtype) return bytes;
  return 0;
}

bool is_list_of_sizes(const nlohmann::json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const auto& size) {
           return size.is_number_unsigned() && size.template get<uint64_t>() <= INT64_MAX;
         });
}

SafetensorsEntry parse_entry(const nlohmann::json& value, size_t data_bytes,
                             const std::string& where) {
  require(value.is_object(), "{} must be an object", where);
  const auto field = [&](const char* key) {
    const auto it = value.find(key);
    return it == value.end() ? nlohmann::json() : *it;
  };
  const nlohmann::json dtype = field("dtype"), shape = field("shape"),
                       offsets = field("data_offsets");
  require(dtype.is_string(), "{}: dtype must be a string", where);
  require(is_list_of_sizes(shape), "{}: shape must be a list of sizes", where);
  require(is_list_of_sizes(offsets) && offsets.size() == 2,
          "{}: data_offsets must be a begin and an end", where);

  SafetensorsEntry entry;
  entry.dtype = dtype.get<std::string>();
  entry.shape = shape.get<std::vector<int64_t>>();
  size_t bytes = element_bytes(entry.dtype);
  require(bytes != 0, "{}: unknown dtype {}", where, printable(entry.dtype));
  for (const int64_t size : entry.shape)
    require(!__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes),
            "{}: its shape has more elements than memory can hold", where);
  const auto begin = offsets[0].get<size_t>(), end = offsets[1].get<size_t>();
  require(begin <= end && end <= data_bytes,
          "{}: its data stands at bytes {} to {}, but the file holds {} bytes of data; is it cut "
          "short?",
          where, begin, end, data_bytes);
  require(end - begin == bytes, "{}: its data takes {} bytes; dtype and shape ask for {}", where,
          end - begin, bytes);
  entry.offset = begin;
  entry.bytes = bytes;
  return entry;
}

}  // namespace

std::map<std::string, SafetensorsEntry> parse_safetensors(std::string_view file,
                                                          const std::string& path) {
  require(!file.starts_with("version https://git-lfs"),
          "{}: a Git LFS pointer in place of the file; run git lfs pull in its folder", path);
  require(file.size() >= kLengthBytes, "{}: no safetensors file: it has only {} bytes", path,
          file.size());
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);  // x86 is little-endian as the format is
  require(header_bytes <= file.size() - kLengthBytes && header_bytes <= kMaxHeaderBytes,
          "{}: no safetensors file, or one cut short: a header of {} bytes in a file of {}", path,
          header_bytes, file.size());
  const nlohmann::json header =
      parse_sorted_json(file.substr(kLengthBytes, header_bytes), path + ": header");
  require(header.is_object(), "{}: the header must be a JSON object", path);

  const size_t data_start = kLengthBytes + header_bytes;
  const size_t data_bytes = file.size() - data_start;
  std::map<std::string, SafetensorsEntry> entries;
  for (const auto& [name, value] : header.items())
    if (name != "__metadata__")
      entries.emplace(name, parse_entry(value, data_bytes,
                                        fmt::format("{}: tensor {}", path, printable(name))));

  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<Item*> order;
  for (Item& item : entries) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const Item* a, const Item* b) {
    return std::pair(a->second.offset, a->second.bytes) <
           std::pair(b->second.offset, b->second.bytes);
  });
  size_t end = 0;  // of the tensors so far, in the data
  for (Item* item : order) {
    auto& [name, entry] = *item;
    require(entry.offset >= end, "{}: tensor {} overlaps another one", path, printable(name));
    require(entry.offset == end, "{}: {} bytes before tensor {} belong to no tensor", path,
            entry.offset - end, printable(name));
    end += entry.bytes;
    entry.offset += data_start;
  }
  require(end == data_bytes, "{}: {} bytes at its end belong to no tensor", path, data_bytes - end);
  return entries;
}

nlohmann::json parse_sorted_json(std::string_view text, const std::string& where) {
  using Event = nlohmann::json::parse_event_t;
  bool too_deep = false;
  std::string repeated;
  std::vector<std::set<std::string>> keys;  // of each object that is open
  const auto watch = [&](int depth, Event event, nlohmann::json& value) {
    too_deep = too_deep || depth > kMaxDepth;
    if (too_deep) return false;
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      repeated = printable(value.get<std::string>());
    return true;
  };
  try {
    nlohmann::json value = nlohmann::json::parse(text.begin(), text.end(), watch);
    require(!too_deep, "{}: JSON nested deeper than {} levels", where, kMaxDepth);
    require(repeated.empty(), "{}: the name {} stands twice", where, repeated);
    return value;
  } catch (const nlohmann::json::parse_error& e) {
    fail("{}: not valid JSON at byte {}", where, e.byte);
  } catch (const nlohmann::json::exception&) {  // a number too large for a double
    fail("{}: not valid JSON", where);
  }
}

std::string printable(std::string_view name) {
  constexpr size_t kMaxBytes = 200;
  const bool cut = name.size() > kMaxBytes;
  return nlohmann::json(name.substr(0, kMaxBytes))
             .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) +
         (cut ? "..." : "");
}

}  // namespace nanovllm
