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
// The largest models have some 200,000 tensors, each expert's scales counted, in all their files.
// This many take 0.3 GB and a second.
constexpr size_t kMaxTensors = 500'000;
constexpr size_t kMaxHeaderValues = 12 * kMaxTensors;
constexpr size_t kMaxIndexValues = 2 * kMaxTensors + 1000;

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

/// Reads JSON through without keeping it; throws for a name that stands twice in its object, for
/// deep nesting, and where there are more names and values than memory and time should be spent on.
class NameCheck : public nlohmann::json_sax<nlohmann::json> {
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

 protected:
  /// Of the objects and arrays that are open.
  size_t depth() const { return names_.size(); }

 private:
  bool count() {
    require(++num_values_ <= max_values_, "{}: more than {} names and values", where_, max_values_);
    return true;
  }
  bool open() {
    names_.emplace_back();
    require(names_.size() <= kMaxDepth, "{}: JSON nested deeper than {} levels", where_, kMaxDepth);
    return count();
  }
  bool close() {
    names_.pop_back();
    return true;
  }

  const std::string& where_;
  size_t max_values_;
  size_t num_values_ = 0;
  std::vector<std::set<std::string>> names_;  // of each open object; none of an array
};

/// Reads a header's tensors as they come: as a tree of values they would take ten times the text.
class HeaderReader final : public NameCheck {
 public:
  HeaderReader(const std::string& path, const std::string& where, size_t data_bytes)
      : NameCheck(where, kMaxHeaderValues), path_(path), data_bytes_(data_bytes) {}

  std::map<std::string, SafetensorsEntry> take() { return std::move(entries_); }

  bool start_object(size_t size) override {
    if (depth() > 0) value(depth() == 1);
    NameCheck::start_object(size);
    if (depth() != 2) return true;
    require(in_metadata_ || entries_.size() < kMaxTensors, "{}: more than {} tensors", path_,
            kMaxTensors);
    dtype_.reset();
    shape_.reset();
    offsets_.reset();
    return true;
  }
  bool end_object() override {
    if (depth() == 2 && !in_metadata_) entries_.emplace(tensor_, entry());
    return NameCheck::end_object();
  }
  bool start_array(size_t size) override {
    value(depth() == 2 && field_ != Field::kDtype);
    if (std::vector<int64_t>* const list = depth() == 2 ? start_list() : nullptr) list->clear();
    return NameCheck::start_array(size);
  }
  bool key(std::string& name) override {
    if (depth() == 1) {
      in_metadata_ = name == "__metadata__";
      tensor_ = name;
    } else if (depth() == 2) {
      field_ = name == "dtype"          ? Field::kDtype
               : name == "shape"        ? Field::kShape
               : name == "data_offsets" ? Field::kOffsets
                                        : Field::kOther;
    }
    return NameCheck::key(name);
  }
  bool string(std::string& text) override {
    value(depth() == 2 && field_ == Field::kDtype);
    if (depth() == 2 && field_ == Field::kDtype) dtype_ = text;
    return NameCheck::string(text);
  }
  bool number_unsigned(uint64_t number) override {
    value(depth() == 3 && number <= INT64_MAX);
    if (std::vector<int64_t>* const list = depth() == 3 ? open_list() : nullptr) {
      require(list->size() < kMaxRank, "{}: a list of more than {} sizes", where(), kMaxRank);
      list->push_back(static_cast<int64_t>(number));
    }
    return NameCheck::number_unsigned(number);
  }
  bool null() override { return other(), NameCheck::null(); }
  bool boolean(bool b) override { return other(), NameCheck::boolean(b); }
  bool number_integer(int64_t n) override { return other(), NameCheck::number_integer(n); }
  bool number_float(double n, const std::string& text) override {
    return other(), NameCheck::number_float(n, text);
  }

 private:
  enum class Field { kOther, kDtype, kShape, kOffsets };

  std::string where() const { return fmt::format("{}: tensor {}", path_, printable(tensor_)); }
  void other() const { value(false); }
  // A value begins here; `fits`: it is of the kind that this place has where it is a tensor's.
  void value(bool fits) const {
    require(depth() > 0, "{}: the header must be a JSON object", path_);
    if (fits || in_metadata_) return;
    require(depth() > 1, "{} must be an object", where());
    if (depth() > 3 || field_ == Field::kOther) return;
    fail_field(field_);
  }
  [[noreturn]] void fail_field(Field field) const {
    require(field != Field::kDtype, "{}: dtype must be a string", where());
    require(field != Field::kShape, "{}: shape must be a list of sizes", where());
    fail("{}: data_offsets must be a begin and an end", where());
  }
  std::vector<int64_t>* start_list() {
    if (in_metadata_) return nullptr;
    if (field_ == Field::kShape) return &shape_.emplace();
    return field_ == Field::kOffsets ? &offsets_.emplace() : nullptr;
  }
  std::vector<int64_t>* open_list() {
    if (in_metadata_) return nullptr;
    if (field_ == Field::kShape) return &*shape_;
    return field_ == Field::kOffsets ? &*offsets_ : nullptr;
  }

  /// Of the object that ends.
  SafetensorsEntry entry() {
    if (!dtype_) fail_field(Field::kDtype);
    if (!shape_) fail_field(Field::kShape);
    if (!offsets_ || offsets_->size() != 2) fail_field(Field::kOffsets);
    SafetensorsEntry entry;
    entry.dtype = *dtype_;
    entry.shape = *shape_;
    size_t bytes = element_bytes(entry.dtype);
    require(bytes != 0, "{}: unknown dtype {}", where(), printable(entry.dtype));
    for (const int64_t size : entry.shape)
      require(!__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes),
              "{}: its shape has more elements than memory can hold", where());
    const auto begin = static_cast<size_t>((*offsets_)[0]);
    const auto end = static_cast<size_t>((*offsets_)[1]);
    require(begin <= end && end <= data_bytes_,
            "{}: its data stands at bytes {} to {}, but the file holds {} bytes of data; is it cut "
            "short?",
            where(), begin, end, data_bytes_);
    require(end - begin == bytes, "{}: its data takes {} bytes; dtype and shape ask for {}",
            where(), end - begin, bytes);
    entry.offset = begin;
    entry.bytes = bytes;
    return entry;
  }

  const std::string& path_;
  size_t data_bytes_;
  std::map<std::string, SafetensorsEntry> entries_;
  std::string tensor_;  // whose object is open
  bool in_metadata_ = false;
  Field field_ = Field::kOther;
  std::optional<std::string> dtype_;
  std::optional<std::vector<int64_t>> shape_, offsets_;
};

void check_text(std::string_view text, const std::string& where) {
  require(text.size() <= kMaxHeaderBytes, "{}: {} bytes; at most {} are read", where, text.size(),
          kMaxHeaderBytes);
  const size_t nul = text.find('\0');  // the parser takes one for the end of the text
  require(nul == std::string_view::npos, "{}: not valid JSON: a NUL at byte {}", where, nul);
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
  const std::string_view header = start.substr(kLengthBytes, header_bytes);
  const size_t data_start = kLengthBytes + header_bytes;
  const size_t data_bytes = file_bytes - data_start;
  const std::string where = path + ": header";
  check_text(header, where);
  HeaderReader reader(path, where, data_bytes);
  nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  std::map<std::string, SafetensorsEntry> entries = reader.take();

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
  check_text(text, where);
  NameCheck names(where, kMaxIndexValues);
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
