#include "nanovllm/base/json.h"

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

// A line of JSON from outside may nest 100,000 deep; everything that walks a value here recurses.
constexpr int kMaxDepth = 200;

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  bool too_deep = false;
  try {
    Json value = Json::parse(text.begin(), text.end(), [&](int depth, Json::parse_event_t, Json&) {
      too_deep = too_deep || depth > kMaxDepth;
      return !too_deep;
    });
    require(!too_deep, "{}: JSON nested deeper than {} levels", where, kMaxDepth);
    return value;
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

}  // namespace nanovllm
