#include "nanovllm/server/conversation/calls/json_call.h"

#include <algorithm>

#include "nanovllm/base/error.h"

namespace nanovllm::server {

namespace {

/// Whether JSON can have the character outside of strings, behind `before`.
bool may_follow(char before, char c) {
  if (before == '{') return is_space(c) || is_one_of("\"}", c);
  if (c == '"') return is_one_of("[:,", before);
  if (is_one_of("{[", c)) return is_one_of("[:,", before);
  return is_space(c) || is_in_name(c) || is_one_of("}]:,+", c);
}

/// The text of the last member `key` in the text of a valid JSON object; empty if there is none.
/// A re-serialized value would have other spaces and perhaps rounded numbers. The text goes back to
/// the model in the next prompt, and if it is the same, the prefix cache still has its tokens.
std::string_view value_text(std::string_view object, std::string_view key) {
  std::string_view found, string;
  bool is_wanted = false;
  size_t depth = 0, begin = 0;
  for (size_t i = 0; i < object.size(); ++i) {
    const char c = object[i];
    if (c == '"') {
      const size_t string_begin = ++i;
      while (object[i] != '"') i += object[i] == '\\' ? 2 : 1;
      string = object.substr(string_begin, i - string_begin);
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == ':' && depth == 1) {
      is_wanted = string == key;
      begin = i + 1;
    } else if (c == ',' || c == '}' || c == ']') {
      if (depth == 1 && is_wanted) found = object.substr(begin, i - begin);
      if (depth == 1) is_wanted = false;
      if (c != ',') --depth;
    }
  }
  found.remove_prefix(std::min(found.find_first_not_of(kSpaces), found.size()));
  return found.substr(0, found.find_last_not_of(kSpaces) + 1);
}

}  // namespace

JsonObjectEnd::Step JsonObjectEnd::read(char c) {
  const bool is_valid = in_string_    ? static_cast<unsigned char>(c) >= ' '
                        : depth_ == 0 ? c == '{'
                                      : may_follow(before_, c);
  if (!is_valid) return Step::kInvalid;
  if (!in_string_ && !is_space(c)) before_ = c;
  text_ += c;
  if (escaped_) {
    escaped_ = false;
  } else if (in_string_) {
    escaped_ = c == '\\';
    in_string_ = c != '"';
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if ((c == '}' || c == ']') && --depth_ == 0) {
    return Step::kEnd;
  }
  return Step::kMore;
}

std::optional<Json> parse_object(std::string_view text) {
  try {
    Json json = parse_json(text, "tool call");
    if (json.is_object()) return json;
  } catch (const UserError&) {
    // The model has written something else than JSON.
  }
  return std::nullopt;
}

std::optional<FunctionCall> json_call(std::string_view object, const OfferedTools& tools) {
  const std::optional<Json> call = parse_object(object);
  if (!call || !call->contains("name") || !call->at("name").is_string()) return std::nullopt;
  FunctionCall result = {.name = call->at("name").get<std::string>(), .arguments = {}};
  if (tools.find(result.name) == nullptr) return std::nullopt;

  const char* key = call->contains("arguments") ? "arguments" : "parameters";
  const auto arguments = call->find(key);
  if (arguments == call->end()) return std::nullopt;
  if (arguments->is_object()) {
    result.arguments = value_text(object, key);
    if (result.arguments.empty()) result.arguments = dump_json(*arguments);  // the key has escapes
  } else if (arguments->is_string()) {
    result.arguments = arguments->get<std::string>();
    if (!parse_object(result.arguments)) return std::nullopt;
  } else {
    return std::nullopt;
  }
  return result;
}

}  // namespace nanovllm::server
