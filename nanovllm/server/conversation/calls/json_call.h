#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "nanovllm/base/json.h"
#include "nanovllm/server/conversation/calls/call_reader.h"

namespace nanovllm::server {

/// Finds the end of a JSON object. Text that cannot be JSON is noticed early, so that a broken call
/// does not hide the calls after it: a string that the model has not closed ends at the next line,
/// and other JSON at the next character that is only in strings. parse_json() finds all other
/// errors.
class JsonObjectEnd {
 public:
  enum class Step { kMore, kEnd, kInvalid };

  /// Reads a character. The first one must be '{'.
  Step read(char c);
  const std::string& text() const { return text_; }
  void restart() { *this = {}; }

 private:
  std::string text_;
  size_t depth_ = 0;  // open brackets
  bool in_string_ = false, escaped_ = false;
  char before_ = '\0';  // the last character outside of strings that is not white space
};

/// The JSON object of `text`; nothing if it is not one.
std::optional<Json> parse_object(std::string_view text);

/// The call that a JSON object describes: a "name" that was offered, and "arguments" (or
/// "parameters") that are an object or a string with the text of one. Nothing if the object is no
/// call.
std::optional<FunctionCall> json_call(std::string_view object, const OfferedTools& tools);

}  // namespace nanovllm::server
