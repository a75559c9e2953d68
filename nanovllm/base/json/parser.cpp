#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/strings/utf8.h"

namespace nanovllm {

namespace {

// JSON from outside may be nested 100,000 levels deep, but every function that visits a value is
// recursive. An object may have a million keys, but Json compares each key with all keys
// before it (20,000 keys take 0.2 s).
constexpr size_t kMaxDepth = 200;
constexpr int kMaxKeys = 20'000;
constexpr int64_t kMaxLooks = int64_t{kMaxKeys} * kMaxKeys / 2;

// The memory that a value takes: in a list, which may have twice the size; as an object of its own
// on the heap; and as a key with its place in the list of an object's members.
constexpr size_t kListedBytes = 32, kHeapBytes = 64, kKeyBytes = 64;

// Checks the limits by reading only brackets, commas, colons and strings. The parser finds out
// whether the rest is valid JSON.
void check_limits(std::string_view text, const std::string& where, size_t max_bytes) {
  std::vector<int> num_keys;  // keys of each object or list that is not closed yet
  int64_t num_looks = 0;      // comparisons of keys that the parser will make
  size_t num_bytes = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
      num_bytes += kHeapBytes;
    } else if (c == ',') {
      num_bytes += kListedBytes;
    } else if (c == '{' || c == '[') {
      num_bytes += kListedBytes + kHeapBytes;
      num_keys.push_back(0);
      require(num_keys.size() <= kMaxDepth, "{}: JSON nested deeper than {} levels", where,
              kMaxDepth);
    } else if (c == '}' || c == ']') {
      if (!num_keys.empty()) num_keys.pop_back();
    } else if (c == ':' && !num_keys.empty()) {
      num_bytes += kKeyBytes;
      num_looks += num_keys.back();
      require(++num_keys.back() <= kMaxKeys && num_looks < kMaxLooks,
              "{}: a JSON object with more than {} keys, or many large ones", where, kMaxKeys);
    }
    require(num_bytes <= max_bytes,
            "{}: so many JSON values that they would take more than {} MiB of memory", where,
            max_bytes >> 20);
  }
}

void check_bytes(std::string_view text, const std::string& where) {
  require_utf8(text, where + ": not valid JSON");
  const size_t nul = text.find('\0');  // nlohmann's parser would take it for the end of the text
  require(nul == std::string_view::npos, "{}: not valid JSON: a NUL at byte {}", where, nul);
}

/// Makes values from the events of nlohmann's parser.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // not a type of JSON
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    place_ = &(*open_.back())[name];
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception& e) override {
    error_byte = byte;
    error = e.what();
    return false;
  }

  Json root;
  size_t error_byte = 0;
  std::string error;  ///< the text of nlohmann's exception; empty if there is none

 protected:
  virtual bool add(Json value) {
    place(std::move(value));
    return true;
  }
  virtual bool open(Json list) {
    open_.push_back(&place(std::move(list)));
    return true;
  }
  virtual bool close() {
    open_.pop_back();
    return true;
  }

  Json& place(Json value) {
    if (open_.empty()) return root = std::move(value);
    if (open_.back()->is_array()) return open_.back()->emplace_back(std::move(value));
    return *place_ = std::move(value);
  }

  std::vector<Json*> open_;  // the objects and arrays around the next value
  Json* place_ = nullptr;    // where the next value goes, if it is in an object
};

/// The Reader of parse_sorted_json(), which also checks that function's limits.
class SortedReader final : public Reader {
 public:
  SortedReader(const std::string& where, size_t max_values)
      : where_(where), max_values_(max_values) {}

  bool key(std::string& name) override {
    count();
    require(name.size() <= kMaxKeyBytes, "{}: the name {} has {} bytes; at most {} are read",
            where_, printable(name), name.size(), kMaxKeyBytes);
    Json::Object& members = open_.back()->items();
    place_ = &members.emplace_back(std::move(name), Json()).value;
    return true;
  }

 private:
  static constexpr size_t kMaxKeyBytes = 4096, kMaxSortedDepth = 8;

  void count() {
    require(++num_values_ <= max_values_, "{}: more than {} names and values", where_, max_values_);
  }
  bool add(Json value) override {
    count();
    return Reader::add(std::move(value));
  }
  bool open(Json list) override {
    require(open_.size() < kMaxSortedDepth,
            "{}: JSON nested deeper than {} levels; each of its values must be an object or simple",
            where_, kMaxSortedDepth);
    count();
    return Reader::open(std::move(list));
  }
  bool close() override {
    if (open_.back()->is_object()) {
      Json::Object& members = open_.back()->items();
      std::ranges::sort(members, {}, &Json::Member::key);
      const auto twice = std::ranges::adjacent_find(members, {}, &Json::Member::key);
      if (twice != members.end())
        fail("{}: the name {} occurs twice", where_, printable(twice->key));
    }
    return Reader::close();
  }

  const std::string& where_;
  size_t max_values_;
  size_t num_values_ = 0;
};

/// Throws UserError for the error that the parser found.
[[noreturn]] void fail_for(const Reader& reader, std::string_view text, const std::string& where) {
  // The text of nlohmann's exception: "[json.exception.parse_error.101] parse error at line 1,
  // column 2: what"
  std::string_view what = reader.error;
  const size_t start = what.find("parse error at");
  if (start == std::string_view::npos)
    fail("{}: not valid JSON: a number too large for a double", where);
  what.remove_prefix(start);
  // In a text of one line the number of the line is useless, and `where` may have another number.
  constexpr std::string_view kFirstLine = "parse error at line 1, ";
  if (text.find('\n') == std::string_view::npos && what.starts_with(kFirstLine))
    fail("{}: not valid JSON: parse error at {}", where, what.substr(kFirstLine.size()));
  fail("{}: not valid JSON: {}", where, what);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, size_t max_bytes) {
  check_bytes(text, where);
  check_limits(text, where, max_bytes);
  Reader reader;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader)) fail_for(reader, text, where);
  return std::move(reader.root);
}

Json Json::parse(std::string_view text) { return parse_json(text, "a text of the program"); }

Json parse_sorted_json(std::string_view text, const std::string& where, size_t max_values) {
  check_bytes(text, where);
  SortedReader reader(where, max_values);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader))
    fail("{}: not valid JSON at byte {}", where, reader.error_byte);
  return std::move(reader.root);
}

Json as_number(const Json& value) {
  Json number = value;
  if (value.is_string()) {
    // Only what can be a number is parsed: a list of a million levels would overflow the stack.
    const std::string& text = value.string();
    if (text.find_first_not_of("+-.0123456789eE \t\r\n") != std::string::npos) return value;
    Reader reader;
    if (!nlohmann::json::sax_parse(text.begin(), text.end(), &reader) || !reader.root.is_number())
      return value;
    number = std::move(reader.root);
  }
  if (!number.is_number_float()) return number;
  const double real = number.get<double>();
  if (std::trunc(real) != real || std::abs(real) >= 0x1p63) return number;
  return static_cast<int64_t>(real);
}

}  // namespace nanovllm
