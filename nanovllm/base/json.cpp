#include "nanovllm/base/json.h"

#include <set>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/utf8.h"

namespace nanovllm {

namespace {

// JSON from outside may be nested 100,000 levels deep, but every function that visits a value is
// recursive. An object may have a million keys, but ordered_json compares each key with all keys
// before it (20,000 keys take 0.2 s).
constexpr size_t kMaxDepth = 200;
constexpr int kMaxKeys = 20'000;
constexpr int64_t kMaxLooks = int64_t{kMaxKeys} * kMaxKeys / 2;

// Looks only at brackets, colons and strings; the parser finds out whether the rest is valid JSON.
void check_limits(std::string_view text, const std::string& where) {
  std::vector<int> num_keys;  // of each object or list that is not closed yet
  int64_t num_looks = 0;      // comparisons of keys that the parser will make
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      else if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      num_keys.push_back(0);
      require(num_keys.size() <= kMaxDepth, "{}: JSON nested deeper than {} levels", where,
              kMaxDepth);
    } else if (c == '}' || c == ']') {
      if (!num_keys.empty()) num_keys.pop_back();
    } else if (c == ':' && !num_keys.empty()) {
      num_looks += num_keys.back();
      require(++num_keys.back() <= kMaxKeys && num_looks < kMaxLooks,
              "{}: a JSON object with more than {} keys, or many large ones", where, kMaxKeys);
    }
  }
}

void check_bytes(std::string_view text, const std::string& where) {
  require_utf8(text, where + ": not valid JSON");
  const size_t nul = text.find('\0');  // nlohmann's parser would take it for the end of the text
  require(nul == std::string_view::npos, "{}: not valid JSON: a NUL at byte {}", where, nul);
}

/// Reads JSON without storing it, and checks the limits of parse_sorted_json().
class SortedCheck final : public nlohmann::json_sax<SortedJson> {
 public:
  SortedCheck(const std::string& where, size_t max_values)
      : where_(where), max_values_(max_values) {}

  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    count();
    require(name.size() <= kMaxKeyBytes, "{}: the name {} has {} bytes; at most {} are read",
            where_, printable(name), name.size(), kMaxKeyBytes);
    require(keys_.back().insert(name).second, "{}: the name {} occurs twice", where_,
            printable(name));
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const SortedJson::exception&) override {
    fail("{}: not valid JSON at byte {}", where_, byte);
  }
  bool null() override { return count(); }
  bool boolean(bool) override { return count(); }
  bool number_integer(int64_t) override { return count(); }
  bool number_unsigned(uint64_t) override { return count(); }
  bool number_float(double, const std::string&) override { return count(); }
  bool string(std::string&) override { return count(); }
  bool binary(SortedJson::binary_t&) override { return count(); }

 private:
  static constexpr size_t kMaxKeyBytes = 4096, kMaxSortedDepth = 8;

  bool count() {
    require(++num_values_ <= max_values_, "{}: more than {} names and values", where_, max_values_);
    return true;
  }
  bool open() {
    keys_.emplace_back();
    require(keys_.size() <= kMaxSortedDepth,
            "{}: JSON nested deeper than {} levels; each of its values must be an object or simple",
            where_, kMaxSortedDepth);
    return count();
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& where_;
  size_t max_values_;
  size_t num_values_ = 0;
  std::vector<std::set<std::string>> keys_;  // of each open object; empty for an array
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  check_bytes(text, where);
  check_limits(text, where);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& e) {
    // The text of nlohmann's exception: "[json.exception.parse_error.101] parse error at line 1,
    // column 2: what"
    std::string_view what = e.what();
    if (const size_t colon = what.find("parse error"); colon != std::string_view::npos)
      what.remove_prefix(colon);
    // In a text of one line the number of the line says nothing, and `where` may have another one.
    constexpr std::string_view kFirstLine = "parse error at line 1, ";
    if (text.find('\n') == std::string_view::npos && what.starts_with(kFirstLine))
      fail("{}: not valid JSON: parse error at {}", where, what.substr(kFirstLine.size()));
    fail("{}: not valid JSON: {}", where, what);
  } catch (const Json::out_of_range&) {
    fail("{}: not valid JSON: a number too large for a double", where);
  }
}

SortedJson parse_sorted_json(std::string_view text, const std::string& where, size_t max_values) {
  check_bytes(text, where);
  SortedCheck check(where, max_values);
  SortedJson::sax_parse(text.begin(), text.end(), &check);
  return SortedJson::parse(text.begin(), text.end());
}

std::string printable(const Json& value) {
  constexpr size_t kMaxBytes = 200;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

std::string dump_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nanovllm
