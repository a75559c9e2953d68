#include "nanovllm/server/conversation/answer_parser.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "nanovllm/base/error.h"
#include "nanovllm/base/json.h"
#include "nanovllm/server/http/ids.h"

namespace nanovllm::server {

namespace {

// No tag has a second '<'. So if a tag breaks off, it can only begin again where it broke off.
constexpr std::string_view kThink = "<think>", kThinkEnd = "</think>";
constexpr std::string_view kCall = "<tool_call>", kCallEnd = "</tool_call>";
constexpr std::string_view kNewline = "\n", kSpaces = " \t\r\n";

bool contains(std::string_view characters, char c) {
  return characters.find(c) != std::string_view::npos;
}

/// The JSON object of `text`; nothing if it is not one.
std::optional<Json> parse_object(std::string_view text) {
  try {
    Json json = parse_json(text, "tool call");
    if (json.is_object()) return json;
  } catch (const UserError&) {
    // The model has written something else.
  }
  return std::nullopt;
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

/// The call that `text` describes; nothing if it is none of one of the functions `names`.
std::optional<ToolCall> parse_call(std::string_view text, const std::vector<std::string>& names) {
  const std::optional<Json> call = parse_object(text);
  if (!call || !call->contains("name") || !call->at("name").is_string()) return std::nullopt;
  ToolCall result;
  result.name = call->at("name").get<std::string>();
  if (std::find(names.begin(), names.end(), result.name) == names.end()) return std::nullopt;

  const char* key = call->contains("arguments") ? "arguments" : "parameters";
  const auto arguments = call->find(key);
  if (arguments == call->end()) return std::nullopt;
  if (arguments->is_object()) {
    result.arguments = value_text(text, key);
    if (result.arguments.empty()) result.arguments = dump_json(*arguments);  // the key has escapes
  } else if (arguments->is_string()) {
    result.arguments = arguments->get<std::string>();
    if (!parse_object(result.arguments)) return std::nullopt;
  } else {
    return std::nullopt;
  }
  return result;
}

}  // namespace

void AnswerParts::append(AnswerParts more) {
  reasoning += more.reasoning;
  content += more.content;
  std::move(more.calls.begin(), more.calls.end(), std::back_inserter(calls));
}

AnswerParser::AnswerParser(Options options)
    : options_(std::move(options)),
      state_(options_.splits_reasoning ? State::kBeginning : State::kContent) {}

AnswerParts AnswerParser::add(std::string_view piece) {
  AnswerParts parts;
  for (const char c : piece) read(c, parts);
  return parts;
}

AnswerParts AnswerParser::finish() {
  AnswerParts parts;
  if (state_ == State::kBeginning) leave_beginning(parts);
  if (state_ == State::kAfterJson) {
    end_call(parts);
  } else {
    const bool drops_spaces = state_ == State::kThoughts || follows_call_;
    const bool only_spaces = held_.find_first_not_of(kSpaces) == std::string::npos;
    if (!drops_spaces || !only_spaces) deliver(parts);
  }
  return parts;
}

void AnswerParser::read(char c, AnswerParts& parts) {
  switch (state_) {
    case State::kBeginning:
      held_ += c;
      if (matched_ == 0 && contains(kSpaces, c)) break;
      if (kThink[matched_] != c) {
        leave_beginning(parts);
      } else if (++matched_ == kThink.size()) {
        drop_held_and_enter(State::kThoughts);
      }
      break;
    case State::kThoughts:
      if (read_text(c, kThinkEnd, kNewline, parts)) drop_held_and_enter(State::kContent);
      break;
    case State::kContent:
      if (options_.tool_names.empty()) {
        read_text(c, {}, {}, parts);
      } else if (read_text(c, kCall, kSpaces, parts)) {
        matched_ = 0;
        state_ = State::kJson;
        json_begin_ = held_.size();
      }
      break;
    case State::kJson:
      read_json(c, parts);
      break;
    case State::kAfterJson:
      if (kCallEnd[matched_] == c) {
        held_ += c;
        if (++matched_ == kCallEnd.size()) end_call(parts);
      } else if (matched_ == 0 && contains(kSpaces, c)) {
        held_ += c;
      } else {
        give_up_call(c, parts);
      }
      break;
  }
}

/// Reads a character of the thoughts or the content. Returns whether `tag` is complete. `spaces`
/// are held back, because they are not delivered if the tag follows.
bool AnswerParser::read_text(char c, std::string_view tag, std::string_view spaces,
                             AnswerParts& parts) {
  if (contains(skipped_, c)) return false;
  skipped_ = {};
  if (matched_ > 0 && tag[matched_] != c) deliver(parts);
  held_ += c;
  if (!tag.empty() && tag[matched_] == c) return ++matched_ == tag.size();
  if (!contains(spaces, c)) deliver(parts);
  return false;
}

/// A closing tag in a string belongs to the string. A string that the model has not closed ends at
/// the next line, and other JSON at the next tag: JSON has no newlines in strings and no '<'
/// outside. So a broken call does not hide the calls after it.
void AnswerParser::read_json(char c, AnswerParts& parts) {
  const bool is_valid = in_string_   ? static_cast<unsigned char>(c) >= ' '
                        : depth_ > 0 ? c != '<'
                                     : c == '{' || contains(kSpaces, c);
  if (!is_valid) return give_up_call(c, parts);
  held_ += c;
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
    state_ = State::kAfterJson;
    json_end_ = held_.size();
  }
}

/// A part of the answer ends with the tag in held_. The newlines after the tag are dropped too.
void AnswerParser::drop_held_and_enter(State state) {
  held_.clear();
  matched_ = 0;
  state_ = state;
  skipped_ = kNewline;
}

/// No <think> follows.
void AnswerParser::leave_beginning(AnswerParts& parts) {
  state_ = options_.begins_in_reasoning ? State::kThoughts : State::kContent;
  if (options_.begins_in_reasoning) skipped_ = kNewline;
  matched_ = 0;
  for (const char c : std::exchange(held_, {})) read(c, parts);
}

void AnswerParser::end_call(AnswerParts& parts) {
  const std::string_view json =
      std::string_view(held_).substr(json_begin_, json_end_ - json_begin_);
  if (std::optional<ToolCall> call = parse_call(json, options_.tool_names)) {
    call->index = num_calls_++;
    call->id = new_id("call_");
    if (call->index == 0 || options_.parallel_calls) parts.calls.push_back(std::move(*call));
    held_.clear();
    matched_ = 0;
    follows_call_ = true;
    if (!has_content_) skipped_ = kSpaces;
  } else {
    deliver(parts);
  }
  state_ = State::kContent;
}

/// `c` shows that what was read since <tool_call> is not a call. White space and the beginning of a
/// tag at its end may belong to the next call.
void AnswerParser::give_up_call(char c, AnswerParts& parts) {
  const size_t end = held_.find_last_not_of(kSpaces, held_.size() - matched_ - 1) + 1;
  const std::string rest = held_.substr(end) + c;
  held_.resize(end);
  deliver(parts);
  in_string_ = escaped_ = false;
  depth_ = 0;
  state_ = State::kContent;
  for (const char next : rest) read(next, parts);
}

void AnswerParser::deliver(AnswerParts& parts) {
  if (held_.empty()) return;
  if (state_ == State::kThoughts) {
    parts.reasoning += held_;
  } else {
    parts.content += held_;
    has_content_ = true;
    follows_call_ = false;
  }
  held_.clear();
  matched_ = 0;
}

AnswerParts parse_answer(std::string_view text, AnswerParser::Options options) {
  AnswerParser parser(std::move(options));
  AnswerParts answer = parser.add(text);
  answer.append(parser.finish());
  return answer;
}

}  // namespace nanovllm::server
