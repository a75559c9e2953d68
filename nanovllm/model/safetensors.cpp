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
constexpr size_t kMaxDepth = 8;

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

/// Reads JSON through, keeping the names of the objects that are open alone; throws for what
/// parse_sorted_json refuses.
class NameCheck final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit NameCheck(const std::string& where) : where_(where) {}

  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    require(names_.back().insert(name).second, "{}: the name {} stands twice", where_,
            printable(name));
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception&) override {
    fail("{}: not valid JSON at byte {}", where_, byte);
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(int64_t) override { return true; }
  bool number_unsigned(uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }

 private:
  bool open() {
    names_.emplace_back();
    require(names_.size() <= kMaxDepth, "{}: JSON nested deeper than {} levels", where_, kMaxDepth);
    return true;
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  const std::string& where_;
  std::vector<std::set<std::string>> names_;  // of each open object; none of an array
};

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
  std::memcpy(&header_bytes, start.data(), kLengthBytes);  // x86 is little-endian as the format is
  require(header_bytes <= file_bytes - kLengthBytes && header_bytes <= kMaxHeaderBytes,
          "{}: no safetensors file, or one cut short: a header of {} bytes in a file of {}", path,
          header_bytes, file_bytes);
  const nlohmann::json header =
      parse_sorted_json(start.substr(kLengthBytes, header_bytes), path + ": header");
  require(header.is_object(), "{}: the header must be a JSON object", path);

  const size_t data_start = kLengthBytes + header_bytes;
  const size_t data_bytes = file_bytes - data_start;
  std::map<std::string, SafetensorsEntry> entries;
  for (const auto& [name, value] : header.items())
    if (name != "__metadata__")
      entries.emplace(name, parse_entry(value, data_bytes,
                                        fmt::format("{}: tensor {}", path, printable(name))));

  using Item = std::pair<const std::string, SafetensorsEntry>;
  std::vector<Item*> order;
  order.reserve(entries.size());
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
  const size_t nul = text.find('\0');  // the parser takes one for the end of the text
  require(nul == std::string_view::npos, "{}: not valid JSON: a NUL at byte {}", where, nul);
  NameCheck names(where);
  nlohmann::json::sax_parse(text.begin(), text.end(), &names);
  return nlohmann::json::parse(text.begin(), text.end());
}

std::string printable(std::string_view name) {
  constexpr size_t kMaxBytes = 200;
  const bool cut = name.size() > kMaxBytes;
  return nlohmann::json(name.substr(0, kMaxBytes))
             .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) +
         (cut ? "..." : "");
}

}  // namespace nanovllm
