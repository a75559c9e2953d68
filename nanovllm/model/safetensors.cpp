#include "nanovllm/model/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxDepth = 8;
constexpr size_t kMaxRank = 64;  // NumPy's
constexpr size_t kMaxNameBytes = 4096;
// The largest published models have about 200,000 tensors in all their files together, counting the
// scales of every expert. A header with this many takes 0.5 GB and two seconds.
constexpr size_t kMaxTensors = 500'000;
constexpr size_t kMaxHeaderValues = 12 * kMaxTensors;
constexpr size_t kMaxIndexValues = 2 * kMaxTensors + 1000;

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

/// Reads JSON without storing it and throws if an object has the same name twice, if the nesting is
/// deep, or if there are more names and values than we want to spend memory and time on
/// (progress.bounded-work).
class NameCheck final : public nlohmann::json_sax<nlohmann::json> {
 public:
  NameCheck(const std::string& where, size_t max_values) : where_(where), max_values_(max_values) {}

  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    count();
    require(name.size() <= kMaxNameBytes, "{}: the name {} has {} bytes; at most {} are read",
            where_, printable(name), name.size(), kMaxNameBytes);
    require(names_.back().insert(name).second, "{}: the name {} stands twice", where_,
            printable(name));
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception&) override {
    fail("{}: not valid JSON at byte {}", where_, byte);
  }
  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(int64_t) override { return count(); }
  bool number_unsigned(uint64_t) override { return count(); }
  bool number_float(double, const std::string&) override { return count(); }
  bool string(std::string&) override { return count(); }
  bool binary(nlohmann::json::binary_t&) override { return count(); }

 private:
  bool count() {
    require(++num_values_ <= max_values_, "{}: more than {} names and values", where_, max_values_);
    return true;
  }
  bool open() {
    names_.emplace_back();
    require(names_.size() <= kMaxDepth,
            "{}: JSON nested deeper than {} levels; each of its values must be an object or simple",
            where_, kMaxDepth);
    return count();
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  const std::string& where_;
  size_t max_values_;
  size_t num_values_ = 0;
  std::vector<std::set<std::string>> names_;  // of each open object; empty for an array
};

/// Parses JSON within NameCheck's limits.
nlohmann::json parse_limited(std::string_view text, const std::string& where, size_t max_values) {
  require(text.size() <= kMaxHeaderBytes, "{}: {} bytes; at most {} are read", where, text.size(),
          kMaxHeaderBytes);
  const size_t nul = text.find('\0');  // the parser would take it for the end of the text
  require(nul == std::string_view::npos, "{}: not valid JSON: a NUL at byte {}", where, nul);
  NameCheck check(where, max_values);
  nlohmann::json::sax_parse(text.begin(), text.end(), &check);
  return nlohmann::json::parse(text.begin(), text.end());
}

/// The list of sizes `object[key]`, or none if it is not such a list. `where` names the tensor.
std::optional<std::vector<int64_t>> find_sizes(const nlohmann::json& object, const char* key,
                                               const std::string& where) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return std::nullopt;
  require(list->size() <= kMaxRank, "{}: a list of more than {} sizes", where, kMaxRank);
  for (const nlohmann::json& size : *list)
    if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX) return std::nullopt;
  return list->get<std::vector<int64_t>>();
}

/// One tensor of the header; `offset` is relative to the first byte of the data. `where` names it.
SafetensorsEntry parse_entry(const nlohmann::json& object, size_t data_bytes,
                             const std::string& where) {
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
          "{}: its data are bytes {} to {}, but the file has {} bytes of data; is it cut short?",
          where, begin, end, data_bytes);
  require(end - begin == bytes, "{}: its data takes {} bytes; dtype and shape ask for {}", where,
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
          "{}: a Git LFS pointer in place of the file; run git lfs pull in its folder", path);
  require(file_bytes >= kLengthBytes, "{}: no safetensors file: it has only {} bytes", path,
          file_bytes);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, start.data(), kLengthBytes);  // x86 and the format are little-endian
  require(header_bytes <= file_bytes - kLengthBytes && header_bytes <= kMaxHeaderBytes,
          "{}: no safetensors file, or one cut short: a header of {} bytes in a file of {}", path,
          header_bytes, file_bytes);
  const std::string_view header = start.substr(kLengthBytes, header_bytes);
  const size_t data_start = kLengthBytes + header_bytes, data_bytes = file_bytes - data_start;
  std::map<std::string, SafetensorsEntry> entries;
  const nlohmann::json tensors = parse_limited(header, path + ": header", kMaxHeaderValues);
  require(tensors.is_object(), "{}: the header must be a JSON object", path);
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
  require(end == data_bytes, "{}: {} bytes at its end belong to no tensor", path, data_bytes - end);
  return entries;
}

nlohmann::json parse_safetensors_index(std::string_view text, const std::string& where) {
  return parse_limited(text, where, kMaxIndexValues);
}

std::string printable(std::string_view name) {
  constexpr size_t kMaxBytes = 200;
  const bool cut = name.size() > kMaxBytes;
  return nlohmann::json(name.substr(0, kMaxBytes))
             .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) +
         (cut ? "..." : "");
}

}  // namespace nanovllm
