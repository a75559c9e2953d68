#include "nanovllm/base/json.h"

#include <vector>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

// A line of JSON from outside may nest 100,000 deep, and everything that walks a value here
// recurses; an object may have a million keys, and ordered_json looks each up among all before it
// (20,000 take 0.2 s).
constexpr size_t kMaxDepth = 200;
constexpr int kMaxKeys = 20'000;
constexpr int64_t kMaxLooks = int64_t{kMaxKeys} * kMaxKeys / 2;

// A look at the brackets alone; whether the rest is JSON is the parser's to say.
void check_limits(std::string_view text, const std::string& where) {
  std::vector<int> num_keys;  // of each object or list that is open
  int64_t num_looks = 0;      // at the keys before each
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

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  const size_t nul = text.find('\0');  // nlohmann's parser takes one for the end of the text
  require(nul == std::string_view::npos, "{}: not valid JSON: a NUL at byte {}", where, nul);
  check_limits(text, where);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& e) {
    // nlohmann's text: "[json.exception.parse_error.101] parse error at line 1, column 2: what"
    std::string_view what = e.what();
    if (const size_t colon = what.find("parse error"); colon != std::string_view::npos)
      what.remove_prefix(colon);
    fail("{}: not valid JSON: {}", where, what);
  } catch (const Json::out_of_range&) {
    fail("{}: not valid JSON: a number too large for a double", where);
  }
}

std::string dump_json(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nanovllm
